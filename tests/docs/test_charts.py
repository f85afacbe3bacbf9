"""The charts, and the pages that quote them, show what the tables of docs/performance.md say."""

import re

from tests.examples.support import imported
from tests.harness.job import REPOSITORY


def test_charts_show_the_tables():
    with imported(REPOSITORY / "benchmarks", "charts") as module:
        charts = module.charts()
    assert len(charts) == 6
    for chart in charts:
        for page in (chart.path, *chart.pages):
            text = (REPOSITORY / page).read_text()
            missing = [label for label in chart.labels() if label not in text]
            assert not missing, f"{page}: {missing}; `python benchmarks/charts.py` draws {chart.path}"


def test_the_readme_quotes_the_tables():
    tables = (REPOSITORY / "docs" / "performance.md").read_text()
    ours, base, horovod = map(
        float, re.search(r"step of the CNN, ms \| (.+?) \| (.+?) \| (.+?) ", tables).groups()
    )
    again, strategy = re.search(r"\| CNN \| 4.2 M \|[^(]*\((.+?)\).*\((.+?)\) \|", tables).groups()
    row = f"| {ours / base:.2f} and {again} | {horovod / base:.2f} | {strategy} |"
    assert row in (REPOSITORY / "README.md").read_text()
