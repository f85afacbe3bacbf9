"""What `tfddl analyze` reads in the text of Python's faulthandler."""

import faulthandler
import tempfile
import threading
from pathlib import Path

import tfddl
from tests.flight.builder import STACK
from tfddl.flight.stacks import Frame, equal_stacks, main_thread, parse, where


def stack(*frames: tuple[str, int, str]) -> str:
    return STACK.format(frames="\n".join(f'  File "{p}", line {n} in {f}' for p, n, f in frames))


def test_a_real_dump():
    wait = threading.Event()
    other = threading.Thread(target=wait.wait, daemon=True)
    other.start()
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        wait.set()
        file.seek(0)
        text = file.read()
    assert len(parse(text)) >= 2
    thread = main_thread(text)
    assert thread and thread.frames[0].function == "test_a_real_dump"
    assert "tests/flight/test_stacks.py:" in where(text)


def test_frames_of_libraries():
    root = Path(tfddl.__file__).parent
    for path, package in {
        "/venv/lib/python3.11/site-packages/keras/src/models/model.py": "keras",
        "/usr/lib/python3/dist-packages/six.py": "six",
        "/usr/lib/python3.12/threading.py": "Python",
        "/usr/lib64/python3.12/threading.py": "Python",
        "<frozen runpy>": "Python",
        "/tmp/__autograph_generated_file1x.py": "tensorflow",
        str(root / "ops" / "names.py"): "tfddl",
        "/another/checkout/tfddl/ops/names.py": "tfddl",
        "/home/me/tfddl/train.py": "",
        "/home/me/keras/train.py": "",
    }.items():
        assert Frame(path, "1", "f").package == package, path


def test_the_user_frame():
    text = stack(
        ("/v/lib/python3.11/site-packages/keras/a.py", 1, "fit"),
        ("/me/train.py", 30, "step"),
        ("/me/b.py", 2, "f"),
    )
    assert where(text) == "/me/train.py:30 in step"
    assert where(stack(("/usr/lib/python3.11/runpy.py", 9, "run"))) == "runpy.py:9 in run"
    assert where("") == "" and where(stack()) == ""


def test_equal_stacks_share():
    """Files that autograph generates have another name on each rank."""
    texts = {
        rank: stack((f"/tmp/__autograph_generated_file{rank}.py", 8, "tf__step"), ("/me/train.py", 3, "f"))
        for rank in range(4)
    }
    texts[2] = stack(("/me/train.py", 4, "f"))
    assert [ranks for ranks, _ in equal_stacks(texts | {5: ""})] == [[2], [0, 1, 3]]


def test_a_dump_without_the_main_thread():
    """Faulthandler writes a hundred threads, the main thread last, and then three dots."""
    assert main_thread(stack(("/me/train.py", 4, "f")) + "...\n") is None
    assert main_thread(stack(("/me/train.py", 4, "f")).rstrip() + "\n  ...\n") is not None


def test_threads_have_names_from_python_3_14():
    assert (
        parse('Thread 0x00007f [reader] (most recent call first):\n  File "a.py", line 1 in f\n')[0].title
        == "reader"
    )
