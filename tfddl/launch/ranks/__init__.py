"""The program of a rank: which one its command names, and its start for `tfddlrun --auto`, `--horovod` and `tfddl.run()`."""
