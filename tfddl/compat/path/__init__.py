"""A folder for Python's path, with a package `horovod`. It is no package itself for programs."""
