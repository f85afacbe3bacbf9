"""Every error and warning of tfddl says what to do."""

from collections import Counter

import pytest

from tests.examples.support import imported
from tests.harness.job import REPOSITORY


@pytest.fixture(scope="module")
def page():
    with imported(REPOSITORY / "docs" / "_ext", "messages_page") as module:
        yield module


def test_all_messages_say_what_to_do(page):
    bare = [f"{each.file}:{each.line}: {each.text}" for each in page.without_remedy(page.messages())]
    assert bare == [], "Add what to do, as in `...: pass an int. Received: ...`"


@pytest.mark.parametrize(
    "text",
    [
        "root_rank is the number of a rank. Received: {root}",
        "`compression` must be a Compressor of your own. Received: use it",
        "the ranks call it a second time, or set it too late",
        "tfddlrun cannot run it",
        "run() calls a function",
    ],
)
def test_a_message_without_a_remedy_is_found(page, text):
    message = page.Message("tfddl/x.py", 1, "ValueError", text)
    assert page.without_remedy([message]) == [message]


def test_the_page_has_a_subject_for_each_folder(page):
    assert "\n## tfddlrun\n" in page.page()


def test_sources_of_each_layer_are_read(page):
    """Messages that reach their error by a parameter, a constant, another function, or a branch."""
    found = page.messages()
    folders = Counter("/".join(each.file.split("/")[:2]) for each in found)
    assert (
        len(found) > 350
        and min(folders[f"tfddl/{name}"] for name in ("keras", "launch", "ops", "runtime")) > 25
    )
    assert (
        min(folders[f"custom_ops/{name}"] for name in ("core", "gpu", "tensorflow", "transport", "xla")) > 2
    )
    texts = "\n".join(f"{each.kind}: {each.text}" for each in found)
    for part in (
        "ValueError: The ranks have different callbacks of tfddl: give all ranks the same callbacks, in one",
        "warning: fit has no BroadcastGlobalVariablesCallback",
        "The folder '{folder}' does not exist. Pass the folder TFDDL_DUMP_DIR",
        "UnknownError: rank {rank} has died: its process {pid} ended",
        "stderr: tfddl: rank {rank} has waited {waited_s} s in {call}; it has not been called by rank {missing}: call "
        "it on all ranks.",
        "CUDA's driver library did not open ({path}): install NVIDIA's driver",
    ):
        assert part in texts, part


def test_row(page):
    text = "splits of alltoall must be a vector: pass one number for each rank. Received: shape {shape}"
    row = page.row(page.Message("tfddl/x.py", 1, "ValueError", text))
    assert row == (
        "ValueError",
        "splits of alltoall must be a vector:",
        "shape {shape}",
        "pass one number for each rank.",
    )
