"""Runs all checks and benchmarks for GPUs one after the other: `make gpu-proof`.

    make EXTRAS=gpu,dev gpu-proof                                     # all steps
    python benchmarks/gpu/proof.py --only compiled --only training    # some of them
    python benchmarks/gpu/proof.py --list

Needs no network (`pack.py` packs what it needs). Each step is a program of its own with a time limit, and its output is
in `build/gpu-proof/STEP.log`. After each step `results.json` there is written anew, so an interrupted run goes on with the
steps that have not passed. All steps run anew with `--again`, and after a change of the C++ sources. On a host with one GPU
two ranks share it, which shows whether results are right, not how fast they are.

Exits with code 1 if a step has failed.
"""

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tfddl.bench import results
from tfddl.build.cache import cache_directory
from tfddl.build.compile import compile_library
from tfddl.build.discover import find_mpi
from tfddl.build.sources import library_stem

ROOT = Path(__file__).resolve().parents[2]
GPU = Path(__file__).resolve().parent
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4", "NCCL_NVLS_ENABLE": "0"}
"""With these variables NCCL 2.30.3 or later runs two ranks on one GPU."""
DOUBLED = (str(GPU / "allreduce.py"), str(GPU / "overlap.py"))
"""Programs that do not load imitations by themselves."""
SOON = {"TFDDL_STALL_WARNING": "2", "TFDDL_STALL_LIMIT": "5"}


@dataclasses.dataclass(frozen=True)
class Step:
    """One program.

    Attributes:
        name: What the step is called; the number of ranks follows it.
        program: Arguments of Python.
        says: A pattern that the output of a good run has.
        ranks: The number of processes.
        limit: Seconds until the program is killed.
        fails: Whether a good run ends with an error, which `says` describes.
        compiles: Whether it needs XLA for GPUs, which knows no imitations.
        environment: Variables to add.
        before: Words in front of the interpreter, as of a tool that runs it.
    """

    name: str
    program: tuple[str, ...]
    says: str
    ranks: int = 1
    limit: float = 300.0
    fails: bool = False
    compiles: bool = False
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    before: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name with the number of ranks."""
        return f"{self.name}-{self.ranks}"


def steps(gpus: int, quick: bool, library: Path) -> list[Step]:
    """The steps for a host with so many GPUs, in their order: what needs least comes first."""
    few = ("--rounds", "1" if quick else "7")
    core = (str(GPU / "core.py"), "--gpus", str(gpus), "--library", str(library))
    small = (*core, "--largest", "65536", "--rounds", "1")
    right = "every collective and dtype is right"
    made = [Step("core", small if quick else (*core, *few), right, 1), Step("core", small, right, 2)]
    memcheck = (
        "compute-sanitizer",
        "--tool",
        "memcheck",
        "--report-api-errors",
        "no",
        "--error-exitcode",
        "9",
    )
    if shutil.which(memcheck[0]):
        made.append(Step("memcheck", small, "ERROR SUMMARY: 0 errors", before=memcheck))
    for name, compiles in (("collectives", False), ("compiled", True), ("training", False)):
        for ranks in (1, 2):
            module = ("-m", f"tests.gpu.{name}")
            made.append(Step(name, module, f"rank {ranks - 1} checked all", ranks, compiles=compiles))
    killed = ("-m", "tests.gpu.failures", "KILL")
    made.append(Step("killed", killed, r"rank 1 was killed by signal 9 \(SIGKILL\)$", 2, 120, fails=True))
    stopped = ("-m", "tests.gpu.failures", "STOP")
    made.append(Step("stopped", stopped, "rank 1 does not answer", 2, 120, fails=True, environment=SOON))
    largest = ("--largest", "65536") if quick else ()
    made.append(Step("latency", (str(GPU / "allreduce.py"), *few, *largest), "allreduce float32 Sum on GPUs"))
    small = ("--width", "8", "--times", "1", "--megabytes", "1") if quick else ()
    made.append(Step("overlap", (str(GPU / "overlap.py"), *few, *small), "buckets behind computation", 2))
    fit = (str(GPU / "training.py"), *few)
    for ranks in (1, 2) if gpus > 1 else (1,):
        made.append(Step("fit", fit, "steps of fit on GPUs", ranks, 900, compiles=True))
    return made


def on_doubles() -> bool:
    """Whether the GPUs are imitations, for tests."""
    return "TFDDL_TEST_GPU_PLUGIN" in os.environ


def count_gpus() -> int:
    """The number of this host's GPUs, or of the imitations."""
    if on_doubles():
        return 2
    tool = shutil.which("nvidia-smi")
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False).stdout if tool else ""
    return len(re.findall(r"^GPU \d+:", listed, re.MULTILINE))


def run(step: Step, gpus: int, directory: Path) -> dict[str, Any]:
    """Runs a step. Returns what `results.json` says of it."""
    log = directory / f"{step.title}.log"
    environment = os.environ | step.environment | (SHARED if step.ranks > gpus else {})
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(
        os.pathsep
    )
    launcher = [sys.executable, "-m", "tfddl.launch.run", "-np", str(step.ranks)]
    imitation = ("-m", "tests.gpu.on_double") if on_doubles() and step.program[0] in DOUBLED else ()
    command = [*launcher, *step.before, sys.executable, *imitation, *step.program]
    begun = time.monotonic()
    with log.open("w") as file:
        kill = ["timeout", "-k", "10", str(step.limit)]
        code = subprocess.run(
            [*kill, *command],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
            check=False,
        ).returncode
    said = re.search(step.says, log.read_text(errors="replace"), re.MULTILINE) is not None
    passed = said and (code != 0) == step.fails and code != 124
    result = "passed" if passed else f"FAILED with code {code}"
    return {"passed": passed, "result": result, "seconds": round(time.monotonic() - begun, 1)}


def show(chosen: list[Step], done: dict[str, Any], directory: Path) -> None:
    """Prints the table."""
    rows = [
        {
            "step": step.title,
            "result": done.get(step.title, {}).get("result", "not run"),
            "seconds": done.get(step.title, {}).get("seconds", ""),
            "log": os.path.relpath(directory / f"{step.title}.log"),
        }
        for step in chosen
    ]
    results.show("checks on GPUs", rows, [f"results: {os.path.relpath(directory / 'results.json')}"])


def main() -> None:
    """Runs the steps that have not passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="a step by its name; may be repeated")
    parser.add_argument("--again", action="store_true", help="run steps that have passed before, too")
    parser.add_argument("--quick", action="store_true", help="small tensors and one round: for a rehearsal")
    parser.add_argument("--list", action="store_true", help="print the steps and run none")
    parser.add_argument(
        "--directory", type=Path, default=ROOT / "build" / "gpu-proof", help="for the results"
    )
    arguments = parser.parse_args()
    directory, gpus, mpi = arguments.directory, count_gpus(), find_mpi()
    library = cache_directory() / f"lib{library_stem('none', mpi.tag)}.so"
    every = steps(max(1, gpus), arguments.quick, library)
    unknown = set(arguments.only) - {name for step in every for name in (step.name, step.title)}
    if unknown:
        raise SystemExit(f"no such step: {', '.join(sorted(unknown))}; --list prints them all")
    chosen = [s for s in every if not arguments.only or {s.name, s.title} & set(arguments.only)]
    if arguments.list:
        raise SystemExit("\n".join(f"{step.title:16}{' '.join(step.program)}" for step in chosen))
    if gpus == 0:
        raise SystemExit("this host has no GPU: nvidia-smi lists none, and there is nothing to prove")
    directory.mkdir(parents=True, exist_ok=True)
    if any(str(library) in step.program for step in chosen) and not library.exists():
        compile_library(None, mpi, cache_directory())
    file = directory / "results.json"
    found = json.loads(file.read_text()) if file.exists() and not arguments.again else {}
    done: dict[str, Any] = found if found.get("library") == library.name else {"library": library.name}
    for step in chosen:
        if step.compiles and on_doubles():
            done[step.title] = {"passed": True, "result": "left out: XLA knows no imitations"}
        elif not done.get(step.title, {}).get("passed"):
            print(f"{step.title} ...", flush=True)
            done[step.title] = run(step, gpus, directory)
            file.write_text(json.dumps(done, indent=2) + "\n")
    show(chosen, done, directory)
    if not all(done[step.title]["passed"] for step in chosen):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
