"""`tfddl bench`: how long collectives and training steps take on this machine, beside others that do the same.

Above `launch`, which starts the jobs. Nothing here but the adapters and `models.py` imports TensorFlow or MPI.

    command.py    the command line
    options.py    what its options may say
    case.py       one line of the table: an operation, a size, a dtype; its inputs and its right result
    sets.py       gradients of whole models
    models.py     models to train
    adapters/     one file for each that is measured
    rank.py       a process of a measured job
    job.py        starts the processes of an adapter and speaks with them
    rounds.py     takes turns over the jobs, makes medians of what they say
    table.py      columns, for people and as JSON and Markdown
    plot.py       the picture
    predict.py    a model of 8 to 512 ranks
"""
