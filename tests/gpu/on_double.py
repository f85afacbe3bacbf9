"""Runs a program on the doubles of CUDA and NCCL as on a GPU: `python -m tests.gpu.on_double PROGRAM [ARGUMENTS]`."""

import runpy
import sys
from pathlib import Path

import tests.gpu.rank  # noqa: F401  loads the plugin

del sys.argv[0]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
