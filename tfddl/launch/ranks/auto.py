"""One rank of `tfddlrun --auto`: `python -m tfddl.launch.ranks.auto train.py ARGUMENTS` runs a program as `python` does.

When the program imports Keras, it gets `tfddl.DataParallel`, and in an elastic job `ElasticCallback`s.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

from tfddl.launch.rank_shim import COMMITS_VARIABLE, RANK_VARIABLES

SEED = "TFDDL_SEED"
# A word of Python's options: flags, then at most one option with a value.
_OPTIONS = re.compile(
    r"-(?P<flags>[^-cmWX]*)(?:(?P<last>[cmWX]|-check-hash-based-pycs)(?P<value>.*))?", re.DOTALL
)


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
    done, rest = [command[0]], list(command[1:])
    while rest and rest[0] != "-" and (words := _OPTIONS.fullmatch(rest[0])):
        flags, last, value = words.groups()
        if last in ("c", "m"):
            # `python -um package` is `python -u -m package`.
            done += [f"-{flags}"] if flags else []
            rest[:1] = [f"-{last}", value] if value else [f"-{last}"]
            break
        taken = 2 if last and not value else 1
        done, rest = [*done, *rest[:taken]], rest[taken:]
    if rest[:1] == ["--"]:
        rest = rest[1:]
    if rest in ([], ["-c"], ["-m"]):
        raise refusal
    return [*done, "-m", "tfddl.launch.ranks.auto", *rest]


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
    if not keras.has_run and os.environ.get(RANK_VARIABLES[0], os.environ.get(RANK_VARIABLES[1])) == "0":
        print(
            "tfddl: --auto is for programs of Keras 3, and this one has not imported it, so each process has done all of "
            "its work: use hvd.DistributedOptimizer or hvd.DistributedGradientTape in it.",
            file=sys.stderr,
        )


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["-m"]:
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[:1] == ["-c"]:
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0] = ""
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
