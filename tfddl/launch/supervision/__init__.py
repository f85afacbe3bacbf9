"""The parts of a running job that `launch/job.py` puts together: its loop, its connections, and its ending."""
