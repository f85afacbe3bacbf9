"""The command line: `tfddlrun` starts a job.

Nothing in this package imports TensorFlow or mpi4py: a launcher starts at once, and needs neither.

    run.py         the command `tfddlrun`
    hosts.py       which hosts, and how many slots each
    mpirun.py      which mpirun, and the line that it is started with
    rank_shim.py   runs beside every rank: sends its output and its end to tfddlrun, and ends it when asked to
    channel.py     tfddlrun's side of that connection
    job.py         starts mpirun, follows all ranks, ends them
    outcome.py     which rank failed first, and the last words about it
    output.py      one stream of lines out of the output of many ranks
    table.py       tables of numbers, for commands of other packages too
    reports.py     the files that such commands write, the packages that they need
"""
