"""`python -m packages.gallery`: runs the examples on one and on two processes, and writes docs/guides/examples.md."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import click
from rich.progress import track

from packages.gallery.entries import PAGE, PICTURES, SCALING, Entry, read, rewrite
from packages.gallery.runs import ROOT, Run, run, save
from packages.gallery.texts import WORK, kept, written

# The one example whose program for one process is another one, and what it is started with.
SINGLE = {"fashion_steps.py": " --single-device"}


@click.command()
@click.option("--only", default="*", help="Only examples whose name matches, such as 'mnist.py'.")
@click.option("--draw", is_flag=True, help="Run nothing; draw and write what build/gallery keeps.")
def main(only: str, draw: bool) -> None:
    """Runs the examples, draws their pictures and writes their entries in docs/guides/examples.md."""
    WORK.mkdir(parents=True, exist_ok=True)
    PICTURES.mkdir(exist_ok=True)
    entries = [entry for entry in read(PAGE.read_text()) if fnmatch(entry.example, only)]
    if not draw:
        for entry in track([entry for entry in entries if entry.example != SCALING], "running"):
            for processes, found in _runs(entry):
                save(found, kept(entry, processes))
    # The page is read again: the runs take minutes, in which somebody may have written to it.
    text = rewrite(PAGE.read_text(), lambda entry: written(entry) if entry in entries else None)
    PAGE.write_text(text)


def _runs(entry: Entry) -> Iterator[tuple[int, Run]]:
    log = WORK / f"{entry.picture.stem}.log"
    if entry.timeline:
        trace = WORK / "timeline.json"
        shown = f"tfddlrun -np 2 --timeline-filename timeline.json python examples/{entry.example}"
        run(shlex.split(shown.replace("timeline.json", str(trace))), shown, 2, log)
        shown_too = "tfddl timeline timeline.json --top 3 --plot timeline.png"
        command = [*shlex.split(shown_too)[:2], str(trace), "--top", "3", "--plot", str(entry.picture)]
        found = run(command, shown_too, 2, log)
        yield 2, Run(f"{shown}\n{shown_too}", 2, found.lines, found.seconds)
        return
    for processes in (1, 2):
        if entry.example.endswith(".ipynb"):
            shown = f"python notebook.py    # the cells of examples/{entry.example}, with np={processes}"
            yield processes, run(["python", str(_script(entry, processes))], shown, processes, log)
            continue
        program = f"python examples/{entry.example}"
        shown = f"tfddlrun -np 2 {program}" if processes == 2 else program + SINGLE.get(entry.example, "")
        yield processes, run(shlex.split(shown), shown, processes, log)


def _script(entry: Entry, processes: int) -> Path:
    """The code of a notebook for a number of processes."""
    cells = json.loads((ROOT / "examples" / entry.example).read_text())["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    path = WORK / "notebook.py"
    path.write_text(code.replace("np=2", f"np={processes}") + "\n")
    return path


if __name__ == "__main__":
    main(prog_name="python -m packages.gallery")
