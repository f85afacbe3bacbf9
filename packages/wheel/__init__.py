"""Builds the one wheel that serves every TensorFlow and MPI without a compiler: `make wheel`. See README.md here."""
