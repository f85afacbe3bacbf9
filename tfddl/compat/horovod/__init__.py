"""Runs programs that were written for Horovod: `import horovod` gives tfddl, with Horovod's arguments and exceptions.

    import tfddl.compat.horovod  # the first line of the program
    import horovod.tensorflow.keras as hvd

`tfddlrun --horovod` does it without this line. `tfddl.compat.horovod_names` lists all modules and names.
"""

from tfddl.compat.horovod.importer import install

install()
