"""Runs all checks and benchmarks for GPUs one after the other: `make gpu-proof`.

    make EXTRAS=gpu,dev gpu-proof                                     # all steps
    python benchmarks/gpu/proof.py --only compiled --only training    # some of them
    python benchmarks/gpu/proof.py --list

Needs no network (`pack.py` packs what it needs). Each step is a program of its own with a time limit, and its output is in
`build/gpu-proof/STEP.log`; the number behind its name is that of ranks. After each step `results.json` there is written
anew, with the rows that the step has measured, so an interrupted run goes on with the steps that have not passed. Results
count for the GPUs, versions and C++ sources that they were made with, and else the steps run anew. On a host with one GPU
two ranks share it, which shows whether results are right, not how fast they are.

A step has passed if its results were right. Exits with code 1 if a step has failed.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import importlib.metadata
import json
import os
import re
import shutil
import signal
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
from tfddl.launch.gpus import local_gpus
from tfddl.runtime.library import nccl_path

ROOT = Path(__file__).resolve().parents[2]
GPU = Path(__file__).resolve().parent
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4", "NCCL_NVLS_ENABLE": "0"}
"""With these variables NCCL 2.30.3 or later runs two ranks on one GPU."""
DOUBLED = (str(GPU / "allreduce.py"), str(GPU / "overlap.py"))
"""Programs that do not load imitations by themselves."""
SHARING = 23003
"""The first NCCL in which ranks may share a GPU, 2.30.3."""
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
        real: Whether it needs a real GPU: XLA knows no imitations, and they are as slow as the CPU.
        environment: Variables to add.
        before: Words in front of the interpreter, as of a tool that runs it.
        measures: Whether the program takes `--json`.
    """

    name: str
    program: tuple[str, ...]
    says: str
    ranks: int = 1
    limit: float = 300.0
    fails: bool = False
    real: bool = False
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    before: tuple[str, ...] = ()
    measures: bool = False

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
    counts, own = sorted({1, 2, gpus}), sorted({1, gpus})  # in `own` each rank has a GPU
    made = [Step("core", small if quick or ranks > gpus else (*core, *few), right, ranks) for ranks in counts]
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
    made.append(Step("tensorflow", ("-m", "tests.gpu.rank"), ""))
    for name, compiles in (("collectives", False), ("compiled", True), ("training", False)):
        for ranks in counts:
            module = ("-m", f"tests.gpu.{name}")
            made.append(Step(name, module, f"rank {ranks - 1} checked all", ranks, real=compiles))
    killed = ("-m", "tests.gpu.failures", "KILL")
    made.append(Step("killed", killed, r"rank 1 was killed by signal 9 \(SIGKILL\)$", 2, 120, fails=True))
    stopped = ("-m", "tests.gpu.failures", "STOP")
    made.append(Step("stopped", stopped, "rank 1 does not answer", 2, 120, fails=True, environment=SOON))
    latency: tuple[str, ...] = (str(GPU / "allreduce.py"), *few)
    if quick:
        latency = (*latency, "--largest", "65536")
    if on_doubles():
        latency = (*latency, "--ways", "graph")
    for ranks in own:
        made.append(Step("latency", latency, "allreduce float32 Sum on GPUs", ranks, measures=True))
    narrow = ("--width", "8", "--times", "1", "--megabytes", "1") if quick else ()
    overlap = (str(GPU / "overlap.py"), *few, *narrow)
    made.append(Step("overlap", overlap, "buckets behind computation", gpus, measures=True))
    for model, options in (("transformer", ()), ("resnet50", ("--no-xla",)), ("resnet50", ())):
        fit = (str(GPU / "training.py"), *few, "--models", model, *options)
        name = f"fit-{model}" + "-graph" * bool(options)
        for ranks in own:
            made.append(Step(name, fit, "steps of fit on GPUs", ranks, 900, real=True, measures=True))
    return made


def on_doubles() -> bool:
    """Whether the GPUs are imitations, for tests."""
    return "TFDDL_TEST_GPU_PLUGIN" in os.environ


def list_gpus() -> list[str]:
    """A line for each GPU that this process may use, or for each imitation."""
    if on_doubles():
        return ["imitation", "imitation"]
    tool = shutil.which("nvidia-smi")
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False).stdout if tool else ""
    found = re.findall(r"^GPU \d+:.*$", listed, re.MULTILINE)
    visible, _ = local_gpus(os.environ)  # nvidia-smi does not look at CUDA_VISIBLE_DEVICES
    return found[:visible]


def nccl_version() -> int:
    """NCCL's number for its version, as 23007 for 2.30.7; 0 if it cannot be opened."""
    version = ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(nccl_path()).ncclGetVersion(ctypes.byref(version))
    return version.value


def conditions(gpus: list[str], library: Path, quick: bool) -> dict[str, Any]:
    """What the results hold for."""
    versions: dict[str, Any] = {"gpus": gpus, "library": library.name, "quick": quick, "nccl": nccl_version()}
    versions["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    for package in ("tensorflow", "tensorflow-cpu", "keras"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def why_not(step: Step, gpus: int, nccl: int) -> str:
    """Why a step cannot run here; empty if it can."""
    if step.real and on_doubles():
        return "needs a real GPU"
    if step.ranks > gpus and nccl < SHARING:
        return f"{step.ranks} ranks on {gpus} GPU(s) need NCCL 2.30.3; found {nccl}"
    return ""


def run(step: Step, gpus: int, directory: Path) -> dict[str, Any]:
    """Runs a step. Returns what `results.json` says of it."""
    log = directory / f"{step.title}.log"
    environment = os.environ | step.environment | (SHARED if step.ranks > gpus else {})
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(paths).strip(os.pathsep)
    launcher = [sys.executable, "-m", "tfddl.launch.run", "-np", str(step.ranks)]
    imitation = ("-m", "tests.gpu.on_double") if on_doubles() and step.program[0] in DOUBLED else ()
    measured = directory / f"{step.title}.json"
    measured.unlink(missing_ok=True)
    options = ["--json", str(measured)] if step.measures else []
    command = [*launcher, *step.before, sys.executable, *imitation, *step.program, *options]
    begun = time.monotonic()
    with log.open("w") as file:
        code = run_to_its_end(command, step.limit, stdout=file, stderr=file, env=environment, cwd=directory)
    text = log.read_text(errors="replace")
    passed = code is not None and (code != 0) == step.fails and re.search(step.says, text, re.MULTILINE)
    seconds = round(time.monotonic() - begun, 1)
    if passed:
        rows = json.loads(measured.read_text())["rows"] if step.measures else []
        slow = any(row.get("ok") == "NO" for row in rows)
        result = "passed, slower than our aim" if slow else "passed"
        return {"passed": True, "result": result, "seconds": seconds, "rows": rows}
    how = f"no end after {step.limit:.0f} s" if code is None else f"code {code}"
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "no output")
    return {"passed": False, "result": f"FAILED: {how}", "seconds": seconds, "last": last[:300]}


def run_to_its_end(command: list[str], limit: float, **options: Any) -> int | None:
    """Runs a command, and ends all that it has started. Returns its exit code, or None after the time limit."""
    job = subprocess.Popen(command, start_new_session=True, **options)
    try:
        return job.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            if job.poll() is None:
                os.killpg(job.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(seconds)


def read(file: Path, now: dict[str, Any]) -> dict[str, Any]:
    """The results of an earlier run under the same conditions, by step."""
    try:
        found = json.loads(file.read_text())
        return dict(found["steps"]) if found["conditions"] == now else {}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        print(f"{file} is no file of results ({error!r}): all steps run anew")
        return {}


def write(file: Path, now: dict[str, Any], done: dict[str, Any]) -> None:
    """Writes the results, whole or not at all."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"conditions": now, "steps": done}, indent=2) + "\n")
    new.replace(file)


def show(chosen: list[Step], left_out: dict[str, str], done: dict[str, Any], file: Path) -> None:
    """Prints the table, and the last words of the steps that failed."""
    rows, notes = [], [f"results: {os.path.relpath(file)}"]
    for step in chosen:
        outcome = done.get(step.title, {})
        result = (
            f"left out: {left_out[step.title]}"
            if step.title in left_out
            else outcome.get("result", "not run")
        )
        log = os.path.relpath(file.with_name(f"{step.title}.log")) if outcome else ""
        rows.append({"step": step.title, "result": result, "seconds": outcome.get("seconds", ""), "log": log})
        if "last" in outcome:
            notes.append(f"{step.title}: {outcome['last']}")
    results.show("checks on GPUs", rows, notes)


def prove(chosen: list[Step], gpus: list[str], file: Path, now: dict[str, Any], done: dict[str, Any]) -> bool:
    """Runs the steps that have not passed. Returns whether all have."""
    left_out = {step.title: reason for step in chosen if (reason := why_not(step, len(gpus), now["nccl"]))}
    rest = [step for step in chosen if step.title not in left_out]
    try:
        for step in rest:
            if done.get(step.title, {}).get("passed"):
                continue
            print(f"{step.title} ...", flush=True)
            done[step.title] = run(step, len(gpus), file.parent)
            write(file, now, done)
            if step.name == "tensorflow" and not done[step.title]["passed"]:
                print(
                    "TensorFlow sees no GPU, so its steps cannot run (make EXTRAS=gpu,dev setup in a fresh checkout)"
                )
                break
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here")
    show(chosen, left_out, done, file)
    return all(done.get(step.title, {}).get("passed") for step in rest)


def main() -> None:
    """Chooses the steps and runs them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="a step by its name; may be repeated")
    parser.add_argument("--again", action="store_true", help="run steps that have passed before, too")
    parser.add_argument("--quick", action="store_true", help="small tensors and one round: for a rehearsal")
    parser.add_argument("--list", action="store_true", help="print the steps and run none")
    parser.add_argument(
        "--directory", type=Path, default=ROOT / "build" / "gpu-proof", help="for the results"
    )
    arguments = parser.parse_args()
    gpus, mpi = list_gpus(), find_mpi()
    library = cache_directory() / f"lib{library_stem('none', mpi.tag)}.so"
    arguments.directory = arguments.directory.resolve()  # in which the steps run
    every = steps(max(1, len(gpus)), arguments.quick, library)
    unknown = set(arguments.only) - {name for step in every for name in (step.name, step.title)}
    if unknown:
        parser.error(f"no such step on this host: {', '.join(sorted(unknown))}; --list prints all")
    chosen = [s for s in every if not arguments.only or {s.name, s.title} & set(arguments.only)]
    if arguments.list:
        print("\n".join(f"{step.title:22}{' '.join([*step.before, *step.program])}" for step in chosen))
        return
    if not gpus:
        raise SystemExit("this host has no GPU: nvidia-smi lists none, and there is nothing to prove")
    try:
        arguments.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--directory: {error}")
    if any(str(library) in step.program for step in chosen) and not library.exists():
        compile_library(None, mpi, cache_directory())
    file, now = arguments.directory / "results.json", conditions(gpus, library, arguments.quick)
    done = read(file, now)
    if arguments.again:
        done = {title: each for title, each in done.items() if title not in {step.title for step in chosen}}
    if not prove(chosen, gpus, file, now, done):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
