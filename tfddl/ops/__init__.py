"""The collectives, each with its gradient.

All of them are loaded at once, because the gradient of one op is made of others, whose gradients are needed in turn.
"""

from tfddl.ops import allgather, allreduce, alltoall, broadcast, reducescatter

__all__ = ["allgather", "allreduce", "alltoall", "broadcast", "reducescatter"]
