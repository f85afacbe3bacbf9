"""Training that goes on after a loss."""
