"""`tfddlrun --elastic`: starts a job again after a rank or a host is lost, and when hosts come and go.

session.py     the starts of a job, one after the other
restart.py     whether to start again after a loss, with how many processes, and on which hosts
folder.py      the folder of the commits, which outlives the processes
discovery.py   the script that names the hosts
pool.py        the hosts that the job may use
cooldown.py    hosts that have failed, and for how long they are not used
survival.py    whether a start goes on in its processes when ranks have died
hand_over.py   whether a start is to end at its next commit
"""
