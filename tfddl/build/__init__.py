"""Finds, compiles and caches tfddl's native library.

`locate.locate_library` returns the library that fits the running process. `compile.compile_library` is the one function
that compiles a library: for the wheel, for `tfddl build` and for the first use. No file here imports TensorFlow at its top.
"""
