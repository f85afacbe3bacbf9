"""Gives Python the modules `horovod`, `horovod.tensorflow`, ..., which hold tfddl's functions."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tfddl.compat import horovod_variables
from tfddl.compat.horovod_names import ABSENT, KERAS_MODULES, MODULES

PACKAGE = "horovod"


class HorovodModule(ModuleType):
    """One module of Horovod. It imports a name of `MODULES` when a program first asks for it."""

    def __getattr__(self, name: str) -> Any:
        homes = MODULES[self.__name__]
        if name in homes:
            home, _, original = homes[name].rpartition(":")
            value = getattr(importlib.import_module(home), original)
        elif f"{self.__name__}.{name}" in MODULES:
            value = importlib.import_module(f"{self.__name__}.{name}")
        else:
            advice = f": {ABSENT[name]}" if name in ABSENT else ""
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{advice}")
        setattr(self, name, value)
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the module by its name, as cloudpickle does with a plain module."""
        return importlib.import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *MODULES[self.__name__]})


class Importer(MetaPathFinder, Loader):
    """Finds and makes the modules of `MODULES`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder.find_spec`.

        Raises:
            ModuleNotFoundError: The module is one of Horovod's that tfddl does not have.
        """
        if fullname in MODULES:
            spec = ModuleSpec(fullname, self, origin=__file__, is_package=True)
            spec.has_location = True  # programs print `horovod.__file__`
            return spec
        package, _, name = fullname.rpartition(".")
        if package.split(".")[0] == PACKAGE and name in ABSENT:
            raise ModuleNotFoundError(f"No module named {fullname!r}: {ABSENT[name]}", name=fullname)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """See `importlib.abc.Loader.create_module`."""
        return HorovodModule(spec.name, f"tfddl with the names of {spec.name}.")

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader.exec_module`."""
        names = MODULES[module.__name__]
        vars(module)["__all__"] = [name for name in names if not name.startswith("_")]
        if module.__name__ in KERAS_MODULES:
            importlib.import_module("tfddl.compat.horovod.keras2_spellings").install_unless_off()


def install() -> None:
    """Makes `import horovod` give these modules, also where Horovod is installed, and takes Horovod's settings.

    Raises:
        ImportError: The program has imported Horovod already.
        ValueError: A setting of Horovod in the environment has the wrong form.
    """
    if any(isinstance(finder, Importer) for finder in sys.meta_path):
        return
    present = sys.modules.get(PACKAGE)
    # The package of `tfddlrun --horovod`, or of the distribution tfddl-horovod, is importing this module.
    if present is not None and not getattr(present.__spec__, "_initializing", False):
        raise ImportError(
            "import tfddl.compat.horovod has to come before the first import of horovod: make it the first line of "
            f"the program. Received: horovod from {getattr(present, '__file__', None)}"
        )
    horovod_variables.take(os.environ)
    sys.meta_path.insert(0, Importer())
    sys.modules.pop(PACKAGE, None)
    sys.modules[PACKAGE] = importlib.import_module(PACKAGE)
