"""Parts of the commands that report numbers (`tfddl bench`, `tune` and `timeline`).

options.py  options for output files, and a check for the packages that a report needs
table.py    tables on the terminal
"""
