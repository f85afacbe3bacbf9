"""Training of a plain Keras program on all ranks: each takes its part of every global batch."""
