"""The questions that Horovod's users ask of an installation."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tfddl as hvd
from tests.harness import on_ranks

REPOSITORY = Path(__file__).parents[2]
VERSION = "import tfddl; print('NCCL', tfddl.nccl_built())"


def test_what_is_there_and_what_is_not():
    assert hvd.mpi_built() is hvd.mpi_enabled() is True
    for absent in (hvd.gloo_built, hvd.gloo_enabled, hvd.rocm_built, hvd.ccl_built, hvd.ddl_built):
        assert absent() is False
    assert hvd.cuda_built() is hvd.gpu_available("tensorflow") is False  # TensorFlow for the CPU


@on_ranks(1, 2)
def test_threads(hvd):
    assert hvd.mpi_threads_supported() is True


def test_threads_before_init():
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.mpi_threads_supported()


def nccl(monkeypatch, **environment):
    """What a fresh process says."""
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    done = subprocess.run([sys.executable, "-c", VERSION], capture_output=True, text=True, check=True)
    return int(done.stdout.split("NCCL ")[1])


@pytest.mark.slow
def test_nccl(doubles, tmp_path, monkeypatch):
    """Of a Python package, unless the environment names one."""
    monkeypatch.delenv("TFDDL_NCCL_LIBRARY", raising=False)
    package = tmp_path / "nvidia" / "nccl" / "lib"
    package.mkdir(parents=True)
    shutil.copy(doubles / "libtfddl_fake_nccl.so", package / "libnccl.so.2")
    shutil.copy(doubles / "libtfddl_fake_cuda.so", package)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (REPOSITORY, tmp_path))))
    assert nccl(monkeypatch) == 22707
    assert nccl(monkeypatch, TFDDL_FAKE_NCCL_VERSION=22805) == 22805
    assert nccl(monkeypatch, TFDDL_FAKE_NCCL_VERSION=21705) == 0  # too old
    assert nccl(monkeypatch, TFDDL_NCCL_LIBRARY="/nowhere/libnccl.so.2") == 0
