"""The command `tfddl`: looks after the installation, and measures what it can do."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import click

from tfddl.bench.command import bench
from tfddl.timeline.command import timeline


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from tfddl import __version__

        click.echo(f"tfddl {__version__}")
        context.exit()


@click.group(no_args_is_help=True)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
def main() -> None:
    """Looks after an installation of tfddl, measures it, and reads traces. Training jobs are started with tfddlrun."""


main.add_command(bench)
main.add_command(timeline)


@main.command()
def build() -> None:
    """Compiles the native libraries.

    Unless ones that fit are there; prints their paths.

    They are made for the TensorFlow and the MPI of this Python and kept in the user's cache (TFDDL_CACHE_DIR).
    The first use of tfddl does the same, and the first use of jit_compile=True for the one with the XLA kernels;
    `tfddl build` does it before a job starts, or on a host that has a compiler.
    """
    from tfddl.build.compile import CompileError
    from tfddl.build.discover import DiscoveryError
    from tfddl.build.locate import locate_library, locate_xla_library
    from tfddl.build.support import UnsupportedError

    errors = (CompileError, DiscoveryError, UnsupportedError)
    kernels, missing = None, None
    # At the same time, since the kernels are one long unit for one core. They are this thread's: Ctrl-C ends it, and is
    # no failure that the next start would remember.
    with ThreadPoolExecutor(1) as pool:
        library = pool.submit(locate_library)
        if os.environ.get("TFDDL_XLA") != "0":
            try:
                kernels = locate_xla_library(again=True)
            except errors as error:
                missing = error
    try:
        click.echo(library.result())
    except errors as error:
        raise click.ClickException(str(error)) from None
    if kernels:
        click.echo(kernels)
    if missing:
        click.echo(f"tfddl: jit_compile=True is not available, all else is: {missing}", err=True)


if __name__ == "__main__":
    main()
