"""Makes XLA round alike on hosts whose processors have different instruction sets.

With a larger instruction set XLA fuses more multiplications with additions, so a compiled optimizer would give the
ranks different weights. TensorFlow's own kernels for elementwise operations, such as the update of a weight, round alike
on all processors. Its matmuls do not, so an optimizer that multiplies matrices, such as Muon, gives the ranks different
weights there.
"""

from __future__ import annotations

import os
import re

from tfddl.build import discover, support
from tfddl.runtime.agreement import by_rank
from tfddl.runtime.job import Job

# XLA's names, from the smallest set, and the flags of Linux that each adds to the set before it.
_SETS = {
    "SSE4_2": {"sse4_2"},
    "AVX": {"avx"},
    "AVX2": {"avx2", "fma"},
    "AVX512": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "AVX512_VNNI": {"avx512_vnni"},
    "AVX512_BF16": {"avx512_bf16"},
    "AMX": {"amx_tile", "amx_int8", "amx_bf16"},
    "AMX_FP16": {"amx_fp16"},
}
_NAMES = list(_SETS)
_FLAG = "--xla_cpu_max_isa"
_FLAGS_VARIABLE = "XLA_FLAGS"


def instruction_set() -> str:
    """The largest instruction set for which XLA compiles in this process, by XLA's name; empty if unknown, as on ARM."""
    limit = re.search(rf"{_FLAG}=(\w+)", os.environ.get(_FLAGS_VARIABLE, ""))
    here = _of_processor(_processor_flags())
    if not here or not limit or limit[1].upper() not in _NAMES:
        return here
    return min(here, limit[1].upper(), key=_NAMES.index)


def limit_xla(job: Job) -> None:
    """Limits XLA to the smallest instruction set of the ranks. XLA reads the limit when it compiles for the first time."""
    smallest = _smallest(job)
    if smallest and smallest != job.instruction_sets[job.rank] and _can_be_limited():
        os.environ[_FLAGS_VARIABLE] = f"{os.environ.get(_FLAGS_VARIABLE, '')} {_FLAG}={smallest}".strip()


def about_xla(job: Job) -> str | None:
    """Tells the user that instruction sets differ, and compiled programs with them; None if all ranks have the same one."""
    smallest = _smallest(job)
    if not smallest:
        return None
    found = by_rank(dict(enumerate(job.instruction_sets)))
    if _can_be_limited():
        return (
            f"the processors of the ranks have different instruction sets ({found}). XLA compiles for {smallest} on all "
            f"ranks, so that all round alike; to silence this line, set XLA_FLAGS={_FLAG}={smallest} on all ranks."
        )
    return (
        f"the processors of the ranks have different instruction sets ({found}), so weights that compiled programs "
        "compute differ in their last bits: use jit_compile=False, or TensorFlow 2.19 or later."
    )


def _smallest(job: Job) -> str | None:
    """The smallest instruction set; None if there is nothing to limit."""
    sets = set(job.instruction_sets)
    return None if len(sets) == 1 or "" in sets else min(sets, key=_NAMES.index)


def _can_be_limited() -> bool:
    return support.major_minor(discover.tensorflow_version() or "0.0") >= support.XLA_MAX_ISA


def _of_processor(flags: set[str]) -> str:
    """The largest set of which the processor has all flags, and those of all smaller sets."""
    found = ""
    for name, added in _SETS.items():
        if not added <= flags:
            break
        found = name
    return found


def _processor_flags() -> set[str]:
    """The flags of the first processor: the file has them for each processor."""
    try:
        with open("/proc/cpuinfo") as lines:
            return set(next((line for line in lines if line.startswith("flags")), "").split())
    except OSError:
        return set()
