"""`horovod.run`: a function on several processes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfddl.launch.function import run_function, whole_number

_ELASTIC = ("min_num_proc", "max_num_proc", "min_np", "max_np", "host_discovery_script", "reset_limit")
_WITHOUT_EFFECT = ("slots", "cooldown_range", "disable_cache", "use_gloo", "executable")
# Argument -> the option of tfddlrun.
_OPTIONS = {
    "hosts": "--hosts",
    "hostfile": "--hostfile",
    "start_timeout": "--start-timeout",
    "ssh_port": "--ssh-port",
    "ssh_identity_file": "--ssh-identity-file",
    "output_filename": "--output-filename",
    "mpi_args": "--mpi-args",
}


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls a function in several processes, which train together.

    Args:
        func: The function; also one of a notebook.
        args: Its arguments.
        kwargs: Its arguments by name.
        num_proc: The number of processes.
        hosts: `"node1:4,node2:4"`. Defaults to this host.
        hostfile: A file with a host on each line: `node1 slots=4`.
        start_timeout: Seconds after which a job whose processes have not started ends.
        ssh_port: Port of ssh on the other hosts.
        ssh_identity_file: File with the key that ssh shows to the other hosts.
        output_filename: A folder for what each rank prints: `rank.0/stdout`, `rank.0/stderr`, ...
        mpi_args: More options for mpirun, as in a shell.
        verbose: Whether to print the line of mpirun, and the starts and ends of processes.
        network_interfaces: Names of network interfaces, for several hosts.
        np: The older name of `num_proc`.

    The arguments of elastic jobs raise an error if they are given. All others change nothing, and a warning says so.

    Returns:
        The results, by rank.

    Raises:
        ValueError: Both `hosts` and `hostfile`, or both `use_gloo` and `use_mpi` are given.
        NotImplementedError: An argument of elastic jobs is given.
        RuntimeError: A process has failed. Its error has been printed.
    """
    given = locals()
    elastic = [name for name in _ELASTIC if given[name] is not None]
    if elastic:
        raise NotImplementedError(
            f"run() cannot go on after a loss: leave {', '.join(elastic)} out, or start a program by tfddlrun --elastic."
        )
    if hosts is not None and hostfile is not None:
        raise ValueError("Give hosts or hostfile, not both.")
    if use_gloo and use_mpi:
        raise ValueError("Give use_gloo or use_mpi, not both. tfddl uses MPI always.")
    if network_interface:
        warnings.warn(
            "network_interface is deprecated; use network_interfaces", DeprecationWarning, stacklevel=2
        )
        network_interfaces = network_interface
    if isinstance(network_interfaces, str):
        network_interfaces = network_interfaces.split(",")
    ignored = [name for name in _WITHOUT_EFFECT if given[name] and given[name] != sys.executable]
    if ignored:
        warnings.warn(f"{', '.join(ignored)}: changes nothing in tfddl; leave it out", stacklevel=2)
    processes = whole_number("num_proc", num_proc) if np is None else whole_number("np", np)
    options = ["-np", str(processes), "--horovod", *_options(given)]
    options += [f"--network-interfaces={','.join(network_interfaces)}"] if network_interfaces else []
    options += ["--verbose"] if verbose else []
    return run_function(func, args or (), kwargs or {}, options)


def _options(given: Mapping[str, Any]) -> list[str]:
    return [f"{option}={given[name]}" for name, option in _OPTIONS.items() if given[name] not in (None, "")]
