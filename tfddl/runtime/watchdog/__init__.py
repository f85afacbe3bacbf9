"""The watchdogs bound the waits of `init()` and of the exit for other ranks, and name these ranks."""
