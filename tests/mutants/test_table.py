"""The planted faults still fit the sources; `make mutants` plants them."""

from tests.mutants.fault import misfits
from tests.mutants.table import FAULTS


def test_every_fault_fits_the_sources():
    assert not misfits(FAULTS)
