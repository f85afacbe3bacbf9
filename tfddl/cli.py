"""The command `tfddl`: compiles and measures, looks for faults, and reads timelines and flight records."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import click

from tfddl import __version__
from tfddl._environment import switched_on
from tfddl.bench.command import bench
from tfddl.bench.tune.command import tune
from tfddl.doctor.command import doctor
from tfddl.flight.command import analyze
from tfddl.launch import signals
from tfddl.launch.streams import commands
from tfddl.timeline.command import timeline


class _Group(commands.Command, click.Group):
    """The commands of `tfddl`."""

    program = "tfddl"


@click.group(cls=_Group, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="tfddl %(version)s", help="Print the version.")
@click.pass_context
def main(context: click.Context) -> None:
    """Checks the installation, compiles the library, and measures and explains jobs. `tfddlrun` starts jobs."""
    # A signal ends a command as Ctrl-C does, so that the command removes its files. `tfddl tune` has none and runs as a
    # rank: a handler in Python would not run while the rank waits in a collective.
    if context.invoked_subcommand != tune.name:
        signals.interrupt()


main.add_command(analyze)
main.add_command(bench)
main.add_command(doctor)
main.add_command(timeline)
main.add_command(tune)


@main.command()
def build() -> None:
    """Compiles the native libraries if needed, and prints their paths.

    The libraries are for the TensorFlow and the MPI of this Python, and stay in the user's cache (TFDDL_CACHE_DIR).
    The first use of tfddl compiles too, and the first use of jit_compile=True compiles the XLA kernels.
    `tfddl build` compiles before a job starts, or on a host that has a compiler.
    """
    from tfddl.build.compile import CompileError
    from tfddl.build.discover import DiscoveryError
    from tfddl.build.locate import locate_library, locate_xla_library
    from tfddl.build.support import UnsupportedError

    errors = (CompileError, DiscoveryError, UnsupportedError)
    kernels, missing = None, None
    # Both compile at the same time, since the kernels are one long unit for one core. This thread compiles the kernels,
    # so that Ctrl-C ends the compilation and is not remembered as a failure.
    with ThreadPoolExecutor(1) as pool:
        library = pool.submit(locate_library)
        try:
            kernels = locate_xla_library(again=True) if switched_on("TFDDL_XLA") else None
        except (*errors, ValueError) as error:
            missing = error
    try:
        click.echo(library.result())
    except errors as error:
        raise click.ClickException(str(error)) from None
    if kernels:
        click.echo(kernels)
    if missing:
        click.echo(f"tfddl: jit_compile=True is not available, all else is; see why: {missing}", err=True)


@main.group(short_help="Manages the cache of compiled libraries.")
def cache() -> None:
    """Manages the user's cache of compiled libraries (TFDDL_CACHE_DIR)."""


@cache.command()
def clear() -> None:
    """Removes tfddl's files from the cache, and says which. The next use compiles again where it has to."""
    from tfddl.build.cache import clear_cache
    from tfddl.build.compile import CompileError

    try:
        directory, removed = clear_cache()
    except (CompileError, OSError) as error:
        raise click.ClickException(str(error)) from None
    for path in removed:
        click.echo(f"removed {path}")
    if not removed:
        click.echo(f"{directory} holds nothing of tfddl's")


if __name__ == "__main__":
    main()
