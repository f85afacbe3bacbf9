"""One rank of `tfddlrun --auto`: `python -m tfddl.launch.ranks.auto train.py ARGUMENTS` runs a program as `python` does.

When the program imports Keras, it gets `tfddl.DataParallel`, and in an elastic job `ElasticCallback`s.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import pkgutil
import random
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import BuiltinImporter, ModuleSpec, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType
from typing import Any

from tfddl.launch.rank_shim import COMMITS_VARIABLE, rank
from tfddl.launch.ranks.program import python_arguments

SEED = "TFDDL_SEED"


def command_of(command: Sequence[str]) -> list[str]:
    """The command of a rank.

    Args:
        command: The user's, such as `["python", "-u", "train.py"]`.

    Raises:
        ValueError: It does not start a program of Python.
    """
    refusal = ValueError(
        f"--auto starts programs of Python: tfddlrun --auto python train.py. Received: {' '.join(command)}"
    )
    if not os.path.basename(command[0]).startswith("python"):
        raise refusal
    options, rest = python_arguments(command[1:])
    if rest in ([], ["-c"], ["-m"]):
        raise refusal
    return [command[0], *options, "-m", "tfddl.launch.ranks.auto", *rest]


class _AfterKeras(MetaPathFinder, Loader):
    """Calls `tfddl.DataParallel` when Keras has been imported."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._plain: Any = None
        self._looks = False
        self.has_run = False

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "keras" or self._looks or self.has_run:
            return None
        self._looks = True  # TensorFlow looks for Keras before the program imports it
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looks = False
        if spec is not None:
            self._plain, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._plain.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.has_run = True
        self._plain.exec_module(module)
        import tfddl

        tfddl.DataParallel(seed=self._seed)
        if COMMITS_VARIABLE in os.environ:
            tfddl.elastic.add_to_every_fit()

    def get_code(self, name: str) -> CodeType | None:
        code: CodeType | None = self._plain.get_code(name)
        return code


def main(arguments: list[str]) -> None:
    """Runs a program: a file, `-m MODULE` or `-c CODE`, with its arguments."""
    import numpy as np

    seed = int(os.environ[SEED]) % 2**32
    random.seed(seed)
    np.random.seed(seed)
    keras = _AfterKeras(seed)
    sys.meta_path.insert(0, keras)
    _run(arguments)
    if not keras.has_run and rank() == 0:
        print(
            "tfddl: --auto is for programs of Keras 3, and this one has not imported it, so each process has done all of "
            "its work: use hvd.DistributedOptimizer or hvd.DistributedGradientTape in it.",
            file=sys.stderr,
        )


def _run(arguments: list[str]) -> None:
    """Runs the program in a new module `__main__`, which stays: threads go on after the program's last line."""
    module: Any = ModuleType("__main__")
    module.__builtins__ = builtins
    sys.modules["__main__"] = module
    # `python -m` and a folder or an archive are run by this function of Python's own.
    as_main: Any = vars(runpy)["_run_module_as_main"]
    if arguments[:1] == ["-m"]:
        sys.argv = ["-m", *arguments[2:]]
        _set_first_path(os.getcwd())
        as_main(arguments[1])
    elif arguments[:1] == ["-c"]:
        sys.argv = ["-c", *arguments[2:]]
        _set_first_path("")
        module.__loader__ = BuiltinImporter
        exec(compile(arguments[1], "<string>", "exec", dont_inherit=True), vars(module))
    elif pkgutil.get_importer(arguments[0]) is not None:
        sys.argv = arguments
        _set_first_path(os.path.abspath(arguments[0]), always=True)
        as_main("__main__", alter_argv=False)
    else:
        sys.argv = arguments
        _set_first_path(os.path.dirname(os.path.realpath(arguments[0])))
        module.__file__ = os.path.abspath(arguments[0])
        module.__cached__ = None
        exec(_code(module), vars(module))


def _set_first_path(path: str, always: bool = False) -> None:
    """Puts a folder where modules are looked for first. With Python's options -P and -I only an archive is."""
    if not sys.flags.safe_path:
        sys.path[0] = path
    elif always:
        sys.path.insert(0, path)


def _code(module: Any) -> CodeType:
    """The code of a file. Gives the module the loader of the file, from which tracebacks get the lines."""
    path: str = module.__file__
    compiled = path.endswith(".pyc")
    module.__loader__ = (SourcelessFileLoader if compiled else SourceFileLoader)("__main__", path)
    try:
        if compiled:
            code: CodeType = module.__loader__.get_code("__main__")
        else:
            code = module.__loader__.source_to_code(module.__loader__.get_data(path), path)
    except OSError as error:
        print(f"tfddl: --auto cannot read the program: check its path. Received: {error}", file=sys.stderr)
        sys.exit(2)  # as Python does
    return code


if __name__ == "__main__":
    main(sys.argv[1:])
