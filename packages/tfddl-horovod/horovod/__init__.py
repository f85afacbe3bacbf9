"""The package `horovod` of the distribution tfddl-horovod: tfddl, with Horovod's names and arguments."""

from importlib.metadata import PackageNotFoundError, version

try:
    _present = version("horovod")
except PackageNotFoundError:
    import tfddl.compat.horovod  # noqa: F401 puts itself into the place of this module
else:
    raise ImportError(
        "The distributions horovod and tfddl-horovod both install a package `horovod`, and pip cannot keep them apart: "
        "pip uninstall horovod tfddl-horovod, then pip install the one of the two that you want. "
        f"Received: horovod {_present}"
    )
