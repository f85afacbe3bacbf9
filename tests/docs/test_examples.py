"""The examples in docstrings of public names print on 2 ranks what they show."""

import doctest
import io

import keras
import numpy as np
import tensorflow as tf

import tfddl
from tests.harness import on_ranks

LEAST = 20
"""Examples that there are at least."""


def examples() -> list[doctest.DocTest]:
    """The examples of the public names, each with the names that it uses."""
    names = {"hvd": tfddl, "keras": keras, "np": np, "tf": tf}
    homes = (tfddl, *(getattr(tfddl, package) for package in tfddl._PACKAGES))
    public = {name: getattr(home, name) for home in homes for name in home.__all__}
    parser = doctest.DocTestParser()
    tests = [
        parser.get_doctest(value.__doc__ or "", dict(names), name, None, 0)
        for name, value in sorted(public.items())
        if callable(value)
    ]
    return [test for test in tests if test.examples]


@on_ranks(2)
def test_examples(hvd):
    tests = examples()
    assert len(tests) >= LEAST
    output, runner = io.StringIO(), doctest.DocTestRunner(verbose=False)
    for test in tests:
        runner.run(test, out=output.write)
    assert runner.failures == 0, output.getvalue()
