"""How a rank starts its program for `tfddlrun --auto`, `tfddlrun --horovod` and `tfddl.run()`."""
