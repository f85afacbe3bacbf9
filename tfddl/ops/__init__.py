"""The collectives, one a file, each with its gradient."""
