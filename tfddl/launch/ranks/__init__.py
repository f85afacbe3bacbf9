"""How a rank starts its program for `tfddlrun --auto` and `tfddlrun --horovod`."""
