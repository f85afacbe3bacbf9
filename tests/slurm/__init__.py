"""Jobs of a real Slurm, whose two nodes are two daemons on this machine: `make test-slurm`."""
