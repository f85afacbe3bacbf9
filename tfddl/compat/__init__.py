"""Modules under other packages' names, for programs that were written for them."""
