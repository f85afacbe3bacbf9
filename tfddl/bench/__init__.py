"""`tfddl bench`: times collectives and training steps of tfddl and of other libraries, on this machine or on several hosts.

`launch` starts the jobs. Only the adapters and `models.py` import TensorFlow. Only they and `rounds.measure` use MPI.

    command.py        the command line
    param_types.py    types of its options: sizes, lists of names
    case.py           a case: an operation, a size and a dtype, with inputs and the right result
    gradient_sets.py  gradients of whole models
    models.py         models to train
    adapters/         one file for each library or baseline
    rounds.py         the timing harness: blocks, rounds, medians; benchmarks/ uses it too
    session.py        one run: the workers of all adapters, and their rounds
    place.py          the hosts of the workers
    channel.py        the connections to the workers
    worker_group.py   starts the workers of one adapter and sends them requests
    worker.py         one worker
    results.py        lines of results, as a table and as Markdown
    plot.py           the picture
"""
