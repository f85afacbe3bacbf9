"""tfddlrun for `function.run_function`: `python -m tfddl.launch.function_job CALLER DIRECTORY OPTIONS... COMMAND`.

The job ends with the process that has called `run()`, also if SIGKILL ends that process, as "Restart kernel" of a notebook
does.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys

from tfddl.launch import rank_shim, signals


def main(caller: int, directory: str, arguments: list[str]) -> None:
    """Runs the job, and removes the directory of the call if the caller no longer can.

    Args:
        caller: The process that has called `run()`, and has started this one.
        directory: The directory of the call.
        arguments: Those of tfddlrun.
    """
    signals.interrupt()
    rank_shim.end_with_parent(signal.SIGTERM)
    try:
        if os.getppid() == caller:  # else it has ended before the call above, and no signal will come
            from tfddl.launch.run import main as tfddlrun

            tfddlrun(arguments, prog_name="tfddlrun")
    except KeyboardInterrupt as caught:  # during the import
        sys.exit(128 + signals.number_of(caught))
    finally:
        if os.getppid() != caller:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
