"""Everything that finds, compiles and caches tfddl's native library.

`locate.locate_library` gives the library that fits the running process; `compile.compile_library` is the one
function that makes one, for the wheel, for `tfddl build` and for the first import alike. Nothing in here
imports TensorFlow at module level.
"""
