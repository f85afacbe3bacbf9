"""`tfddl timeline`: sums up the traces that `hvd.start_timeline` writes. Needs neither TensorFlow nor MPI.

command.py   the command line
trace.py     the file of one rank, as custom_ops/core/trace/timeline.cc writes it
align.py     all ranks on one clock, and one file of all
summary.py   the numbers: waits, transfers, steps, late ranks
plot.py      the picture
"""
