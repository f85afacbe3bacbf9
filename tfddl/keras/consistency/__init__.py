"""What keeps the ranks of a training consistent: checks before it, during it and at the end of each epoch."""
