"""For programs of TF1: optimizers and hooks of `tf.compat.v1`, in graphs and sessions."""
