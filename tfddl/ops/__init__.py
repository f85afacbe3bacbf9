"""The collectives, each with its gradient.

All of them are loaded at once, because the gradient of one op is made of others, whose gradients are needed in turn.
"""

from tfddl.ops import allgather, allreduce, broadcast, reducescatter

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]
