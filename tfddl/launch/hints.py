"""Remedies for errors of programs that were started in the wrong way."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tfddl.launch.ranks.program import PYTHON

_MISSING = re.compile(r"^(?:ModuleNotFound|Import)Error: No module named '([\w.]+)'", re.MULTILINE)
# The last line of the program calls one of these, and below it are only their own frames.
_FOLDER_EXISTS = re.compile(
    r"(?:makedirs|mkdir)\(.*\n(?:    .*\n)*(?:  File .*, in (?:makedirs|mkdir)\n(?:    .*\n)*)*FileExistsError: "
)
_FILE_IS_LOCKED = re.compile(r"^BlockingIOError: .*create file .*unable to lock file", re.MULTILINE)  # h5py's
_OF_HOROVOD = re.compile(
    r"^\w+Error: (?:No module named 'tfddl\.|cannot import name 'hvd' from 'tfddl')", re.MULTILINE
)
_NOT_IN = re.compile(r"^\w+Error: .*'(?:tfddl|tensorflow|keras)[.'].*$", re.MULTILINE)
_PACKAGE = re.compile(r"\b(?:tfddl|tensorflow|keras)\b")
_LEFT = re.compile(r"Error: .*?(rank \d+) has shut down tfddl \(its program ended")
_FRAME = re.compile(r'^  File "([^"<]+)", line (\d+), in .*\n    (.+)$', re.MULTILINE)
_LIBRARIES = (f"{Path(__file__).parents[1]}/", "/site-packages/")
# A spelling of Keras 2, the one of Keras 3, and the error that Keras 3 has for the former.
_KERAS2 = [
    (old, new, re.compile(error, re.MULTILINE | re.DOTALL))
    for old, new, error in (
        ("lr=", "learning_rate=", r"^ValueError: Argument\(s\) not recognized: [^\n]*'lr'"),
        ("optimizer.lr", "optimizer.learning_rate", r"^AttributeError: '\w+' object has no attribute 'lr'"),
        (
            "optimizer.variables()",
            "optimizer.variables",
            r"\.variables\(\).*^TypeError: 'list' object is not callable",
        ),
        (
            "experimental_run_tf_function=",
            "",
            r"^TypeError: \S*compile\(\) got an unexpected \S+ \S+ 'experimental_run_tf_function'",
        ),
        (
            "workers=, max_queue_size= and use_multiprocessing=",
            "them in keras.utils.PyDataset, not in fit",
            r"^(Type|Value)Error: [^\n]*(argument|not recognized)[^\n]*'(workers|max_queue_size|use_multiprocessing)'",
        ),
        (
            "fit_generator, evaluate_generator and predict_generator",
            "fit, evaluate and predict",
            r"^AttributeError: [^\n]* has no attribute '(fit|evaluate|predict)_generator'",
        ),
        (
            "backend.set_value(variable, value)",
            "variable.assign(value)",
            r"in set_value\n.*^AttributeError: 'str' object has no attribute 'name'",
        ),
    )
]
_TRAINS = re.compile(r"^\s*(import|from) (keras|tf_keras|tensorflow)\b", re.MULTILINE)
_COMMUNICATES = re.compile(
    r"\b(tfddl|horovod|mpi4py|MultiWorkerMirroredStrategy|ParameterServerStrategy|TF_CONFIG)\b"
)
_STRATEGY = re.compile(r"\b(tf\.distribute|MirroredStrategy)\b")
_OF_THIS_PYTHON = ("tfddl", "tensorflow", "keras")


def hint(errors: str, processes: int, command: Sequence[str], horovod: bool) -> str:
    """Makes the last line after the error of a rank.

    Args:
        errors: The end of what the rank has written to stderr.
        processes: The number of ranks.
        command: The command, as the user gave it.
        horovod: Whether it was started with --horovod.

    Returns:
        The line; empty if nothing is known about the error.
    """
    for old, new, error in _KERAS2:
        if error.search(errors):
            change = (
                f"Keras 3 has {new} in place of {old}"
                if new
                else f"leave {old} out, Keras 3 does not need it"
            )
            said = f"tfddlrun: {change}: see docs/horovod.md for changes of this kind"
            if horovod and os.environ.get("TFDDL_KERAS2_SPELLINGS") != "0":
                return said  # the job has accepted such spellings
            return (
                f"{said}. Programs that import horovod may keep {old} under tfddlrun --horovod, without "
                "--no-keras2-spellings"
            )
    if processes > 1 and _FOLDER_EXISTS.search(errors):
        return (
            "tfddlrun: every process runs this line, and one has made the folder: write os.makedirs(path, exist_ok=True), "
            "or Path(path).mkdir(parents=True, exist_ok=True); if the name has the time in it, first give all that of rank "
            "0: path = hvd.broadcast_object(path)"
        )
    if processes > 1 and _FILE_IS_LOCKED.search(errors):
        return (
            "tfddlrun: every process runs this line, and another one has the file open: "
            "write `if hvd.rank() == 0:` before it"
        )
    if line := _call_of_one_rank(errors) or _hidden_package(errors, command):
        return line
    if _OF_HOROVOD.search(errors):
        return "tfddlrun: tfddl is one module, with all names: write import tfddl as hvd"
    missing = _MISSING.findall(errors)
    module = missing[-1].partition(".")[0] if missing else ""
    if module == "horovod" and not horovod:
        line = shlex.join(["tfddlrun", "--horovod", "-np", str(processes), *command])
        return (
            f"tfddlrun: for a program that imports horovod give --horovod; it needs no Horovod then: {line}"
        )
    return _other_python(module, processes, command) if module in _OF_THIS_PYTHON else ""


def _call_of_one_rank(errors: str) -> str:
    left = _LEFT.search(errors)
    lines = [frame for frame in _FRAME.findall(errors) if not any(each in frame[0] for each in _LIBRARIES)]
    if not left or not lines:
        return ""
    path, number, source = lines[-1]
    return (
        f"tfddlrun: {left[1]} has ended without the call in line {number} of {path}: {source.strip()}. Let all ranks make "
        "this call, equally often: move it out of a block such as if hvd.rank() == 0"
    )


def _hidden_package(errors: str, command: Sequence[str]) -> str:
    """A line about a file beside the script that has the name of a package, and so is imported in its place."""
    script = next((word for word in command if word.endswith(".py")), "")
    packages = _PACKAGE.findall(" ".join(_NOT_IN.findall(errors)))
    files = [Path(script).parent.absolute() / f"{package}.py" for package in packages]
    file = next(filter(Path.exists, files), None)
    return f"tfddlrun: the file {file} hides the package {file.stem}: rename that file" if file else ""


def hint_before(command: Sequence[str], processes: int) -> str:
    """Makes a line about a program that seems to train without tfddl.

    Args:
        command: The command, as the user gave it.
        processes: The number of ranks.

    Returns:
        The line; empty if the program is no file of Python, or need not be doubted.
    """
    script = next((word for word in command if word.endswith(".py")), "")
    try:
        source = Path(script).read_text() if script and processes > 1 else ""
    except (OSError, UnicodeDecodeError):
        return ""
    if not _TRAINS.search(source) or _COMMUNICATES.search(source):
        return ""
    line = shlex.join(["tfddlrun", "--auto", "-np", str(processes), *command])
    strategy = "Leave tf.distribute's strategy and its scope() out: see docs/migrate/tf-distribute.md. "
    return (
        f"tfddlrun: {script} does not import tfddl. If none of its modules does, each of the {processes} processes trains a "
        f"model of its own. {strategy if _STRATEGY.search(source) else ''}To train one model of Keras on all of them: {line}"
    )


def missing_script(command: Sequence[str]) -> str:
    """The script of a command `python SCRIPT.py`, if there is none here; empty for other commands."""
    is_script = len(command) > 1 and PYTHON.fullmatch(Path(command[0]).name) and command[1].endswith(".py")
    return command[1] if is_script and not Path(command[1]).exists() else ""


def _other_python(module: str, processes: int, command: Sequence[str]) -> str:
    found = shutil.which(command[0])
    if found is None or not PYTHON.fullmatch(Path(found).name):
        return ""
    if Path(found).parent.resolve() == Path(sys.executable).parent.resolve():
        return ""
    line = shlex.join(["tfddlrun", "-np", str(processes), sys.executable, *command[1:]])
    return (
        f"tfddlrun: {command[0]} is {found}, which has no {module}; tfddlrun itself runs in {sys.executable}. Activate that "
        f"environment, or name its Python: {line}"
    )
