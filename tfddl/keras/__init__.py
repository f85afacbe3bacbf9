"""What Keras users touch: the optimizer and the callbacks."""
