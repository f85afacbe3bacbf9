"""A copy of the repository in which faults are planted, compiled and tested."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cmake

from tests.mutants.fault import ROOT, Fault
from tfddl.build.discover import find_tensorflow

RUNS = 3
"""Runs of a test of the engine: some faults are races."""

_LIMITS = {"engine": 60, "python": 240, "sound": 1800}
_TIMED_OUT = (124, 137)


class RepositoryCopy:
    """A copy of the files that git knows, beside a build of the engine's tests; both stay for the next time.

    Args:
        directory: Where it is, or will be.
    """

    def __init__(self, directory: Path) -> None:
        self.tree = directory / "tree"
        self._build = directory / "engine"
        self._cmake = str(Path(cmake.CMAKE_BIN_DIR) / "cmake")
        listed = self._run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
        files = {Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
        for path in files:
            self._update(path)
        for path in list(self.tree.rglob("*")):
            inside = path.relative_to(self.tree)
            if path.is_file() and inside not in files and inside.parts[0] != "build":
                path.unlink()

    def _update(self, path: Path) -> None:
        """Copies a file whose content differs: an equal one keeps its time, so that it is not compiled again."""
        source, target = ROOT / path, self.tree / path
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(source.stat().st_mode)

    def unsound(self, faults: Iterable[Fault]) -> dict[str, str]:
        """Runs the tests of the faults without a fault. Returns what those say that do not pass."""
        said = {}
        engine = sorted({fault.test for fault in faults if not fault.in_python})
        if engine:
            self._configure()
            if output := self._compile(engine):
                return dict.fromkeys(engine, output)
        for test in engine:
            done = self._limited(_LIMITS["engine"], [str(self._build / test)])
            if done.returncode != 0:
                said[test] = done.stdout
        by_run: dict[tuple[str, int], set[str]] = {}
        for fault in faults:
            if fault.in_python:
                by_run.setdefault((fault.extent, fault.ranks), set()).add(fault.test)
        for (extent, ranks), tests in sorted(by_run.items()):
            done = self._pytest(_LIMITS["sound"], extent, ranks, sorted(tests), "-rA")
            outcomes: dict[str, set[str]] = {}
            for line in done.stdout.splitlines():
                outcome, _, test = line.partition(" ")
                outcomes.setdefault(test.split("[")[0].split(" ")[0], set()).add(outcome)
            # A test of which nothing is said is not part of the run.
            said |= {test: done.stdout for test in tests if outcomes.get(test) != {"PASSED"}}
        return said

    def find(self, fault: Fault) -> str:
        """Plants a fault and runs its test: "found", or what happened instead."""
        if reason := fault.misfit(self.tree):
            return f"does not apply: {reason}"
        with self._planted(fault):
            return self._find_in_python(fault) if fault.in_python else self._find_in_engine(fault)

    @contextmanager
    def _planted(self, fault: Fault) -> Iterator[None]:
        path = self.tree / fault.file
        sound = path.read_text()
        path.write_text(sound.replace(fault.right, fault.wrong))
        try:
            yield
        finally:
            path.write_text(sound)

    def _find_in_engine(self, fault: Fault) -> str:
        if said := self._compile([fault.test]):
            return f"does not compile:\n{said}"
        for _ in range(RUNS):
            if self._limited(_LIMITS["engine"], [str(self._build / fault.test)]).returncode != 0:
                return "found"
        return "NOT FOUND"

    def _find_in_python(self, fault: Fault) -> str:
        variables = {}
        if fault.in_library:
            variables["TFDDL_CACHE_DIR"] = str(self.tree / "build/cache")
        done = self._pytest(_LIMITS["python"], fault.extent, fault.ranks, [fault.test], "-x", **variables)
        if done.returncode == 1 or done.returncode in _TIMED_OUT:
            return "found"
        return "NOT FOUND" if done.returncode == 0 else f"does not run:\n{done.stdout[-2000:]}"

    def _configure(self) -> None:
        tensorflow = find_tensorflow()
        assert tensorflow is not None
        options = ["-DTFDDL_WITH_TENSORFLOW=OFF", "-DTFDDL_BUILD_TESTS=ON", "-DTFDDL_UNITY=OFF"]
        options += ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1"]  # no debug symbols
        options += [f"-DTFDDL_TF_INCLUDE={tensorflow.include}", f"-DTFDDL_TF_LIBRARY={tensorflow.library}"]
        self._run([self._cmake, "-S", str(self.tree / "custom_ops"), "-B", str(self._build), *options])

    def _compile(self, tests: list[str]) -> str:
        """Builds tests of the engine. Returns the compiler's output if it fails."""
        jobs = ["--parallel", str(os.cpu_count())]
        done = self._run([self._cmake, "--build", str(self._build), *jobs, "--target", *tests], check=False)
        return done.stdout[-4000:] if done.returncode else ""

    def _pytest(
        self, seconds: int, extent: str, ranks: int, tests: list[str], *options: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        # No bytecode: a file that changes twice in a second, to the same length, would keep its old one.
        environment = {"PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1", **variables}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--{extent}"]
        return self._limited(seconds, [*command, "--ranks", str(ranks), *options, *tests], **environment)

    def _limited(
        self, seconds: int, command: list[str], **variables: str
    ) -> subprocess.CompletedProcess[str]:
        limited = ["timeout", "-k", "10", str(seconds), *command]
        return self._run(limited, cwd=self.tree, check=False, env={**os.environ, **variables})

    @staticmethod
    def _run(
        command: list[str],
        *,
        cwd: Path | None = None,
        check: bool = True,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=env,
            text=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}")
        return done
