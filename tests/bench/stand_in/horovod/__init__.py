"""Stands in for Horovod, which has no build for the TensorFlow that is tested with."""
