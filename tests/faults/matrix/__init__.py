"""Every fault at every moment of a training job: `python -m tests.faults.matrix --help`.

- `cells.py`: the table of faults and moments, and which rank, size and launcher each pair gets.
- `expectations.py`: the end that each cell has to come to.
- `program.py`, `training.py`: the training program. Its places call `injector.at(moment)`.
- `private_tmp.py`: a /dev/shm and a TMPDIR for one job.
- `run.py`: runs one cell and says what is wrong with its end.
- `__main__.py`: the command.
"""
