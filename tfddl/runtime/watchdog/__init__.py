"""What bounds the waits of `init()` and of the exit for other ranks, and names these ranks."""
