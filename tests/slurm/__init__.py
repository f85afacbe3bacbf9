"""Jobs of a real Slurm, whose two nodes are two daemons on this machine. Skipped where Slurm is not installed."""
