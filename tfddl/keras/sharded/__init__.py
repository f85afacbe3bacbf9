"""Optimizers whose state is divided among the ranks."""
