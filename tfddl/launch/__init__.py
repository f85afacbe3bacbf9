"""The command line: `tfddlrun` starts a job.

Nothing in this package imports TensorFlow or mpi4py, so the launcher starts at once.

    run.py         the command `tfddlrun`
    options.py     its options and its help
    param_types.py the types of the options' values
    function.py    `tfddl.run`; function_job.py is its tfddlrun, which ends with the caller
    start.py       runs the mpirun of a job: once, or with --elastic again after a loss
    elastic/       whether to start again, with which hosts
    ranks/         how a rank starts its program for --auto and --horovod, and calls the function of `tfddl.run`
    config_file.py, horovod_settings.py   options in a YAML file, in horovodrun's form
    yaml_file.py   reads YAML, and keeps the spelling of numbers
    variables.py   environment variables that options give to the ranks
    check_build.py what this tfddl can do
    hosts.py       the hosts, and the slots of each
    allocation.py  how many processes to start where, if nobody says so
    slurm.py       the hosts, tasks and GPUs of a Slurm job
    gpus.py        the GPUs of this host
    mpirun.py      finds mpirun, and builds its command line
    rank_shim.py   runs beside every rank: sends its output and exit status to tfddlrun, and ends it on request
    channel.py     tfddlrun's side of that connection
    job.py         starts mpirun, follows all ranks to their ends
    scratch.py     directories for what Open MPI writes during a job
    open_files.py  the limit of open files
    signals.py     signals to tfddlrun, which end its waits
    outcome.py     finds the rank that failed first, and makes the last message
    hints.py       errors of programs whose cause is how they were started
    streams/       the output of all ranks as one stream of lines, and in a file of each rank
"""
