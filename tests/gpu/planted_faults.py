"""Faults planted into the code for GPUs: each makes a test fail that runs over the doubles of CUDA and NCCL.

These tests test other tests, and compile for minutes: `make mutants` runs them, and no other target.
"""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cmake
import pytest

from tfddl.build.cache import locked
from tfddl.build.discover import find_tensorflow

SOURCES = Path(__file__).parents[2] / "custom_ops"
# Enough for the tests under load, and what ends one that hangs because of a fault.
SOUND_SECONDS, PLANTED_SECONDS = 120, 30


@dataclass(frozen=True)
class Fault:
    """A text of a source file, which stands there once, what is put in its place, and the test that sees it."""

    file: str
    right: str
    wrong: str
    test: str


FAULTS = {
    "done before completion": Fault(
        "gpu/nccl.cc",
        "const bool passed = end_->Passed();",
        "const bool passed = true;",
        "nccl_order_test",
    ),
    "no wait for the input": Fault(
        "gpu/nccl.cc",
        "    ready_->HoldBack(device.stream);\n",
        "",
        "nccl_order_test",
    ),
    "no wait for the memory of a result": Fault(
        "gpu/nccl.cc",
        "    if (*allocated_) (*allocated_)->HoldBack(device.stream);\n",
        "",
        "nccl_order_test",
    ),
    "completion recorded too early": Fault(
        "gpu/nccl.cc",
        "          if (communicator_->Busy()) return false;\n",
        "",
        "nccl_order_test",
    ),
    "what has no time yet is passed over": Fault(
        "gpu/nccl_order.cc",
        "return other.first == collective || mine.key < other.second.key;",
        "return other.first == collective || !other.second.settled || mine.key < other.second.key;",
        "nccl_sets_test",
    ),
    "memory given back while it is used": Fault(
        "gpu/nccl.cc",
        "          phase_ = Phase::kRun;\n          break;\n",
        "          return true;\n",
        "nccl_order_test",
    ),
    "wrong operation": Fault(
        "gpu/nccl_calls.cc",
        "      return kNcclMax;",
        "      return kNcclMin;",
        "nccl_reduce_test",
    ),
    "average without its division": Fault(
        "gpu/nccl_calls.cc",
        "if (NcclAverages(request_, participants_)) return kNcclAvg;",
        "if (NcclAverages(request_, participants_)) return kNcclSum;",
        "nccl_reduce_test",
    ),
    "nothing called for one rank": Fault(
        "gpu/nccl_calls.cc",
        """  for (const Buffer& buffer : request_.buffers) {
    if (buffer.count == 0) continue;
    KeepError(api_.ncclAllReduce(""",
        """  for (const Buffer& buffer : request_.buffers) {
    if (buffer.count == 0 || size_ == 1) continue;
    KeepError(api_.ncclAllReduce(""",
        "nccl_reduce_test",
    ),
    "no abort of what runs": Fault(
        "gpu/nccl.cc",
        "    for (auto& [generation, communicator] : communicators_) communicator->Abort();\n",
        "",
        "nccl_faults_test",
    ),
    "asynchronous errors not looked at": Fault(
        "gpu/nccl_communicator.cc",
        '  device_->api->CheckNccl(state, "asynchronous work");\n',
        "",
        "nccl_faults_test",
    ),
    "a program of XLA goes on before the result is there": Fault(
        "core/compiled/run_call.cc",
        "  const Status held = HoldBack(end, context.stream);\n",
        "  const Status held;\n",
        "nccl_xla_test",
    ),
    "a program of XLA overtakes its run before": Fault(
        "core/compiled/calls_in_flight.cc",
        "  if (last) last->Wait();\n",
        "",
        "nccl_xla_test",
    ),
    "a program of XLA leaves calls behind": Fault(
        "core/compiled/run_call.cc",
        "  return status.ok() ? status : Abandon(engine, context, status);\n}\n\nStatus RunCall",
        "  return status;\n}\n\nStatus RunCall",
        "nccl_xla_test",
    ),
}


class Copy:
    """A copy of the sources, built without MPI and with nothing of TensorFlow but headers, not optimised.

    Args:
        directory: Where it is, or else will be.
    """

    def __init__(self, directory: Path) -> None:
        self.sources = directory / "custom_ops"
        self._build = directory / "build"
        self._cmake = str(Path(cmake.CMAKE_BIN_DIR) / "cmake")
        if directory.exists():
            return
        shutil.copytree(SOURCES, self.sources)
        options = ["-DTFDDL_WITH_TENSORFLOW=OFF", "-DTFDDL_BUILD_TESTS=ON", "-DCMAKE_BUILD_TYPE=Debug"]
        options += ["-DCMAKE_CXX_FLAGS_DEBUG=", "-DTFDDL_UNITY=OFF"]  # no debug symbols; single files change
        tensorflow = find_tensorflow()
        assert tensorflow is not None
        options += [f"-DTFDDL_TF_INCLUDE={tensorflow.include}", f"-DTFDDL_TF_LIBRARY={tensorflow.library}"]
        self._run(self._cmake, "-S", str(self.sources), "-B", str(self._build), *options)

    @staticmethod
    def _run(*command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def fails(self, test: str, seconds: int) -> bool:
        """Builds a test and runs it up to three times: whether it failed, or hung, in one of them."""
        self._run(self._cmake, "--build", str(self._build), "--parallel", "2", "--target", test)
        return any(not self._passes(test, seconds) for _ in range(3))

    def _passes(self, name: str, seconds: int) -> bool:
        try:
            done = subprocess.run(
                [str(self._build / name)], capture_output=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


@pytest.fixture
def copy(run_directory: Path) -> Iterator[Copy]:
    """The copy of this test run, in which one fault is planted at a time."""
    directory = run_directory / "planted"
    with locked(directory.with_suffix(".lock")):
        yield Copy(directory)


@pytest.mark.parametrize("test", sorted({fault.test for fault in FAULTS.values()}))
def test_sound(copy: Copy, test: str) -> None:
    assert not copy.fails(test, SOUND_SECONDS)


@pytest.mark.parametrize("name", FAULTS)
def test_planted(copy: Copy, name: str) -> None:
    fault = FAULTS[name]
    path = copy.sources / fault.file
    sound = path.read_text()
    assert sound.count(fault.right) == 1, f"the text that '{name}' replaces has changed"
    path.write_text(sound.replace(fault.right, fault.wrong))
    try:
        assert copy.fails(fault.test, PLANTED_SECONDS)
    finally:
        path.write_text(sound)
