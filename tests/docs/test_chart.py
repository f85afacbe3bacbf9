"""README's chart and its text show what the table of docs/performance.md says."""

from tests.examples.support import imported
from tests.harness.job import REPOSITORY


def test_chart_shows_the_table():
    with imported(REPOSITORY / "benchmarks", "efficiency_chart") as chart:
        values = [value for by_library in chart.efficiencies().values() for value in by_library.values()]
    assert len(values) == 4
    for page in ("docs/efficiency.svg", "README.md", "docs/index.md"):
        text = (REPOSITORY / page).read_text()
        assert [value for value in values if f"{100 * value:.0f} %" not in text] == [], page
