"""Optimizers and hooks for programs of TF1, which use `tf.compat.v1` in graphs and sessions."""
