"""The last rank of a job on GPUs is killed or stopped while collectives run. A script for two or more ranks:

TFDDL_STALL_WARNING=2 TFDDL_STALL_LIMIT=5 tfddlrun -np 2 python -m tests.gpu.failures KILL    # or STOP
"""

import os
import signal
import sys
import threading
import time

import tensorflow as tf

import tfddl as hvd
from tests.gpu.rank import GPU, rank, size

SIGNAL = signal.Signals[f"SIG{sys.argv[1]}"]
AFTER, ALLOWED = 1.0, 60.0  # seconds


@tf.function
def step(x):
    with tf.device(GPU):
        return [hvd.allreduce(x, op=hvd.Average, name=f"failure_{number}") for number in range(4)]


with tf.device(GPU):
    mine = tf.ones([1 << 18])
step(mine)
hvd.barrier()
begun = time.monotonic()
if rank == size - 1:
    threading.Timer(AFTER, os.kill, (os.getpid(), SIGNAL)).start()
try:
    while time.monotonic() - begun < ALLOWED:
        assert step(mine)[-1][0] == 1
except tf.errors.OpError as error:
    print(f"rank {rank} raised after {time.monotonic() - begun - AFTER:.1f} s: {error}", flush=True)
    raise SystemExit(1) from error
raise SystemExit(f"rank {rank} saw no error for {ALLOWED} s")
