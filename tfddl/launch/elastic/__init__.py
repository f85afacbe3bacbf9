"""`tfddlrun --elastic`: starts a job again after a rank or a host is lost.

restart.py   whether to start again, with how many processes, and on which hosts
folder.py    the folder of the commits, which outlives the processes
"""
