"""For scripts that were installed before `tfddl.cli` had this function; `make setup` writes them anew."""

from tfddl.cli import main as main
