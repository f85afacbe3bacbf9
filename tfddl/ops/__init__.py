"""The collectives, each with its gradient.

All are loaded at once, because the gradient of one collective is made of other collectives.
"""

from tfddl.ops import allgather, allreduce, alltoall, broadcast, reducescatter

__all__ = ["allgather", "allreduce", "alltoall", "broadcast", "reducescatter"]
