"""The command line: `tfddlrun` starts a job.

Nothing in this package imports TensorFlow or mpi4py, so the launcher starts at once.

    run.py         the command `tfddlrun`
    hosts.py       the hosts, and the slots of each
    mpirun.py      finds mpirun, and builds its command line
    rank_shim.py   runs beside every rank: sends its output and exit status to tfddlrun, and ends it on request
    channel.py     tfddlrun's side of that connection
    job.py         starts mpirun, follows all ranks to their ends
    outcome.py     finds the rank that failed first, and makes the last message
    output.py      merges the output of all ranks into one stream of lines
    table.py       tables of numbers, for the commands of other packages too
    reports.py     the output files and required packages of commands that report numbers
"""
