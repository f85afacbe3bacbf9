"""The parts of a running job that `launch/job.py` puts together, and commands beside it.

loop.py, links.py, ending.py   the job's loop, its connections, and its ending
children.py                    short commands, such as the discovery script and the probes of `tfddl doctor`
"""
