"""`tfddl timeline`: what the traces of `hvd.start_timeline` say of a job.

No TensorFlow and no MPI here.

    command.py   the command line
    trace.py     the file of one rank, as custom_ops/core/trace/timeline.cc writes it
    align.py     all ranks on one clock, and one file of all
    summary.py   the numbers: waiting, transfers, steps, who was late
    plot.py      the picture
"""
