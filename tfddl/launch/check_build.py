"""The option --check-build: what this tfddl can do, in the form that horovodrun prints."""

from __future__ import annotations

import click


def print_build(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Callback of the option: prints the list and ends the program."""
    if not wanted:
        return
    from tfddl import __version__
    from tfddl.build.compile import CompileError
    from tfddl.build.discover import DiscoveryError
    from tfddl.build.support import UnsupportedError

    try:
        parts = _parts()
    except (CompileError, DiscoveryError, UnsupportedError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"tfddl v{__version__}:")
    for title, rows in parts.items():
        click.echo(f"\n{title}:")
        for name, there in rows.items():
            click.echo(f"    [{'X' if there else ' '}] {name}")
    context.exit()


def _parts() -> dict[str, dict[str, bool]]:
    from tfddl.runtime import features, xla

    return {
        "Available Frameworks": {"TensorFlow": True, "PyTorch": False, "MXNet": False},
        "Available Controllers": {"MPI": features.mpi_built(), "Gloo": features.gloo_built()},
        "Available Tensor Operations": {
            "NCCL": bool(features.nccl_built()),
            "CUDA": features.cuda_built(),
            "MPI": features.mpi_built(),
            "XLA": xla.xla_built(),
        },
    }
