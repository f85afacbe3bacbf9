"""`run`: calls a Python function on several processes, from a notebook or a program, and returns its results."""

from __future__ import annotations

import contextlib
import inspect
import io
import operator
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from tfddl.launch import allocation, variables
from tfddl.runtime.agreement import in_words

CALL, SIZE, RESULT, ERROR = "call.pkl", "size", "result.{}.pkl", "error.{}.pkl"
_ADVICE = allocation.Advice("run(fn, np=2)", "Without np, tfddl.run")


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    hosts: str | None = None,
    env: Mapping[str, str] | None = None,
    verbose: bool = False,
) -> list[Any]:
    """Calls `fn(*args, **kwargs)` in new processes, which train together, and waits for the results.

        def train(rate):
            import keras
            import tfddl as hvd

            hvd.init()
            ...
            return history.history["loss"]

        losses = tfddl.run(train, args=(0.01,), np=2)

    The processes are started by tfddlrun. Their output appears as they write it, each line with its rank in front; in a
    notebook below the cell. Ctrl-C, or the notebook's stop button, ends them.

    Args:
        fn: The function. It may be defined in the notebook or the script, and use variables from there, of which each
            process gets a copy. It has to import what it needs, TensorFlow above all.
        args: Its arguments.
        kwargs: Its arguments by name.
        np: The number of processes. Defaults to all slots of `hosts`; without `hosts` to the tasks of a job of Slurm, PBS or
            LSF, else to one process for each GPU.
        hosts: `"node1:4,node2:4"`, with this working directory on all of them. Defaults to this host.
        env: Environment variables to add, on all hosts.
        verbose: Whether to print the line of mpirun, and the starts and ends of processes.

    Returns:
        The results, by rank.

    Raises:
        ValueError: Nothing says how many processes to start, `np` is less than 1, or `hosts` is empty.
        TypeError: `fn` is no function, `args` no tuple or list, or one of them cannot be pickled; `np` is no whole number;
            `env` has other values than strings.
        RuntimeError: A process has failed. The message has its rank and its traceback; the exception that the function has
            raised is the cause (`__cause__`), if it can be pickled and this process can import its class. Or a result cannot
            be pickled. Or this process cannot load a result; the message says where the results are kept.
    """
    if np is not None:
        np = whole_number("np", np)
    if hosts == "":
        raise ValueError(
            "run() takes hosts as in hosts='node1:4': name one, or leave hosts out. Received: hosts=''"
        )
    added = _checked(env or {})
    if np is None and not hosts:
        allocation.choose({**os.environ, **added}, _ADVICE)
    options = (["-np", str(np)] if np is not None else []) + (["-H", hosts] if hosts else [])
    options += ["--verbose"] if verbose else []
    return run_function(fn, args, kwargs or {}, options, added)


def whole_number(name: str, value: Any) -> int:
    """The number of processes, if it is one.

    Args:
        name: That of the argument.
        value: What has been passed.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is less than 1.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"run() takes the number of processes as an int: call run(fn, {name}=2). Received: {name}={value!r}"
        )
    if value < 1:
        raise ValueError(
            f"run() starts one process or more: call run(fn, {name}=2). Received: {name}={value}"
        )
    return operator.index(value)


def _checked(env: Any) -> dict[str, str]:
    texts = (str, bytes, os.PathLike)
    if not isinstance(env, Mapping):
        raise TypeError(
            f"run() takes environment variables as a dict: pass env={{'NAME': 'value'}}. Received: env={env!r}"
        )
    for name, value in env.items():
        if not isinstance(name, texts) or not isinstance(value, texts):
            raise TypeError(
                "run() takes the names and values of environment variables as strings: pass env={'NAME': '1'}. "
                f"Received: env={ {name: value}!r}"
            )
    return {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}


def run_function(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> list[Any]:
    """Calls a function on each rank of a job.

    Function, arguments and results travel in files of a directory below the working directory, which all hosts of a job
    share; on one host in the directory for temporary files, if the working directory cannot be written.

    Args:
        function: See `run`.
        args: See `run`.
        kwargs: See `run`.
        options: Those of tfddlrun.
        environment: See `run`.

    Returns:
        The results, by rank.

    Raises:
        TypeError: See `run`.
        RuntimeError: See `run`.
    """
    if not callable(function):
        raise TypeError(
            f"run() calls a function; start a script with tfddlrun -np 2 python train.py. Received: {function!r}"
        )
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"run() takes the arguments of the function as a tuple: pass args=(0.01,). Received: args={args!r}"
        )
    name = getattr(function, "__name__", repr(function))
    if inspect.iscoroutinefunction(function):
        raise TypeError(
            f"run() calls plain functions: pass one that calls asyncio.run(...). Received: async def {name}"
        )
    try:
        call = pickle.dumps(sys.path) + _pickled((function, tuple(args), dict(kwargs)))
    except Exception as error:
        raise TypeError(
            f"{name} and its arguments have to be pickled, to travel to the processes: make what cannot be pickled inside "
            f"the function. Received: {type(error).__name__}: {error}"
        ) from error
    added = environment or {}
    # A function of bash, such as BASH_FUNC_module%%, has a name that -x does not take.
    passed_on = [word for name in added if variables.NAME.fullmatch(name) for word in ("-x", name)]
    with _directory_with(call) as path:
        command = [sys.executable, "-m", "tfddl.launch.function_job", str(os.getpid()), str(path)]
        rank = [sys.executable, "-m", "tfddl.launch.ranks.function", str(path)]
        code = _follow([*command, *options, *passed_on, *rank], {**os.environ, **added})
        _raise_error(path, name)
        if code:
            raise RuntimeError(
                f"The job of {name} ended with exit code {code}; see its last lines for the cause."
            )
        results = [path / RESULT.format(rank) for rank in range(int((path / SIZE).read_text()))]
        missing = [str(rank) for rank, result in enumerate(results) if not result.exists()]
        if missing:
            raise RuntimeError(
                f"{name} did not return on rank {', '.join(missing)}, which ended with exit code 0: let it return, and not "
                "call exit()."
            )
        return _loaded(results, name)


def _reduced(code: types.CodeType) -> tuple[Any, ...]:
    return _with_filename, (*cloudpickle.CloudPickler.dispatch_table[types.CodeType](code), code.co_filename)


def _with_filename(
    make: Callable[..., types.CodeType], arguments: Sequence[Any], filename: str
) -> types.CodeType:
    return make(*arguments).replace(co_filename=filename)


class _Pickler(cloudpickle.CloudPickler):
    """Keeps the file names of functions, which tracebacks show. cloudpickle after 3.1.2 leaves them out."""

    dispatch_table = cloudpickle.CloudPickler.dispatch_table.new_child({types.CodeType: _reduced})


def _pickled(value: Any) -> bytes:
    content = io.BytesIO()
    _Pickler(content).dump(value)
    return content.getvalue()


def _raise_error(path: Path, name: str) -> None:
    """Raises what the first rank that failed has raised, with the other ranks that raised the same."""
    errors = sorted(path.glob(ERROR.format("*")), key=lambda each: each.stat().st_mtime_ns)
    if not errors:
        return
    found = {int(each.name.split(".")[1]): pickle.loads(each.read_bytes()) for each in errors}
    text, pickled = next(iter(found.values()))
    same = sorted(rank for rank, (other, _) in found.items() if other == text)
    advice = (
        f"{name} runs in new processes: import what it uses inside it." if "\nNameError: " in text else ""
    )
    raise RuntimeError(f"{name} failed on {in_words(same)}:\n{text}{advice}") from _unpickled(pickled)


def _unpickled(pickled: bytes | None) -> BaseException | None:
    try:
        return pickle.loads(pickled) if pickled else None
    except Exception:  # only the rank can import the exception's class
        return None


@contextlib.contextmanager
def _directory_with(call: bytes) -> Iterator[Path]:
    try:
        made = _made(call, ".tfddl-run-", ".")
    except OSError:  # read-only, full, or no directory for files
        made = _made(call, "tfddl-run-", None)
    with made as directory:
        yield Path(directory).resolve()


def _made(call: bytes, prefix: str, parent: str | None) -> tempfile.TemporaryDirectory[str]:
    made = tempfile.TemporaryDirectory(prefix=prefix, dir=parent)
    try:
        Path(made.name, CALL).write_bytes(call)
    except OSError:
        made.cleanup()
        raise
    return made


def _follow(command: list[str], environment: Mapping[str, str]) -> int:
    """Runs tfddlrun and shows its output. Ctrl-C is for tfddlrun, which ends the ranks."""
    # A notebook replaces sys.stdout; what a process writes to the descriptor would not appear below the cell.
    notebook = sys.stdout is not sys.__stdout__
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if notebook else None,
        stderr=subprocess.STDOUT if notebook else None,
        env=environment,
        text=True,
        errors="replace",
        start_new_session=notebook,
    )
    try:
        for line in process.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
        return process.wait()
    except BaseException:
        # A process ignores SIGINT if its parent does, as in `python train.py &` of a script.
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        process.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()
        raise


def _loaded(results: Sequence[Path], name: str) -> list[Any]:
    """Loads the results of all ranks. If that fails, moves their files beside the directory of the job, and says where."""
    loaded = []
    for rank, result in enumerate(results):
        try:
            loaded.append(pickle.loads(result.read_bytes()))
        except Exception as error:
            # Keras' text is some kilobytes long, with the whole configuration of the model.
            text = str(error).strip()
            unknown = re.search(r"Could not locate (?:class|function) '[^']+'", text)
            reason = unknown[0] if unknown else text[:300]
            kept = tempfile.mkdtemp(prefix="tfddl-results-", dir=result.parent.parent)
            for each in results:
                shutil.move(each, kept)
            raise RuntimeError(
                f"{name} returned a result on rank {rank} that this process cannot load: return model.get_weights(), or the "
                "path of a file that model.save or model.export has written. The results are not lost: read them with "
                f"pickle.load from {kept}/{result.name}, for a layer or a loss of your own in a "
                f"keras.saving.custom_object_scope. Received: {type(error).__name__}: {reason}"
            ) from None
    return loaded
