"""The output of many ranks as one stream of lines."""

import io
import os
import re
import select
import subprocess
import sys
import time

import pytest

from tests.launch.support import LIMIT_S, run_script, running, tfddlrun
from tfddl.launch.streams.output import Output, visible
from tfddl.launch.streams.rank_files import RankFiles


class Terminal(io.BytesIO):
    """A file that stands for a terminal, and can show the text on the screen."""

    def isatty(self):
        return True

    def screen(self):
        lines = []
        for line in self.getvalue().decode().split("\n"):
            lines.append(line.split("\r\x1b[K")[-1])
        return lines


def printer(file_type=io.BytesIO, **options):
    stdout, stderr = file_type(), file_type()
    return Output(stdout, stderr, prefixed=True, **options), stdout, stderr


def test_a_message_after_a_line_that_a_slow_reader_got_in_part():
    output, stdout, stderr = printer()
    answers = [True, False]
    output.may_write = lambda _: answers.pop(0)
    output.write(0, "stdout", b"x" * 9999 + b"\n")
    output.may_write = lambda _: True
    output.message("the end")
    output.message("the last line")
    assert stdout.getvalue() == (b"[0] " + b"x" * 9999)[: select.PIPE_BUF]
    assert stderr.getvalue() == b"\nthe end\nthe last line\n"


def test_lines_of_two_ranks_do_not_mix():
    output, stdout, stderr = printer()
    output.write(0, "stdout", b"one ")
    output.write(1, "stdout", b"two\nthr")
    output.write(0, "stderr", b"oops\n\n")
    output.write(0, "stdout", b"line\n")
    output.write(1, "stdout", b"ee")
    output.finish()
    assert stdout.getvalue() == b"[1] two\n[0] one line\n[1] three\n"
    assert stderr.getvalue() == b"[0] oops\n[0]\n"


def test_time_of_each_line():
    output, stdout, _ = printer(stamp=lambda: "2026-01-02 03:04:05.678")
    output.write(1, "stdout", b"one\n\n")
    assert stdout.getvalue() == b"2026-01-02 03:04:05.678 [1] one\n2026-01-02 03:04:05.678 [1]\n"


def test_any_bytes_pass():
    output, stdout, _ = printer()
    output.write(0, "stdout", "é".encode()[:1])
    output.write(0, "stdout", "é".encode()[1:] + b" \xff\n")
    assert stdout.getvalue() == b"[0] \xc3\xa9 \xff\n"


def test_endless_line_does_not_fill_the_memory():
    output, stdout, _ = printer()
    for _ in range(40):
        output.write(0, "stdout", b"x" * (1 << 16))
    output.finish()
    assert sum(map(len, stdout.getvalue().replace(b"[0] ", b"").split())) == 40 << 16
    assert stdout.getvalue().count(b"\n") > 1


def test_progress_bar_in_a_file_leaves_its_last_state():
    output, stdout, _ = printer(clock=lambda: 0.0)
    for step in range(100):
        output.write(0, "stdout", b"\b\b\b\r%d%%" % step)
        output.write(1, "stdout", b"%d%%\r" % step)
    output.write(0, "stdout", b"\b\b\b\r100%\nnext\r\n")
    output.write(1, "stdout", b"done\n")
    assert stdout.getvalue() == b"[0] 100%\n[0] next\n[1] done\n"


def test_progress_bar_in_a_file_gives_signs_of_life():
    now = 0.0
    output, stdout, _ = printer(clock=lambda: now)
    for step in range(25):
        now = float(step)
        output.write(0, "stdout", b"\rstep %d" % step)
    output.write(0, "stdout", b"\n")
    assert stdout.getvalue() == b"[0] step 10\n[0] step 20\n[0] step 24\n"


def test_progress_bar_on_a_terminal_stays_below_the_lines():
    output, stdout, _ = printer(Terminal)
    output.write(0, "stdout", b"\r10%")
    assert stdout.screen() == ["[0] 10%"]
    output.write(1, "stdout", b"hello\n")
    assert stdout.screen() == ["[1] hello", "[0] 10%"]
    output.write(0, "stdout", b"\r20%")
    assert stdout.screen() == ["[1] hello", "[0] 20%"]
    output.message("tfddlrun: news")
    output.write(0, "stdout", b"\r100%\n")
    output.finish()
    assert stdout.screen() == ["[1] hello", "[0] 100%", ""]


def test_line_on_a_terminal_is_cut_to_its_width():
    output, stdout, _ = printer(Terminal, columns=12)
    output.write(0, "stdout", b"\r\x1b[1mabcdef\x1b[0mghijkl")
    assert stdout.screen() == ["[0] \x1b[1mabcdef\x1b[0mg"]


def test_a_file_beside_a_terminal_gets_no_control_characters():
    stdout, stderr = Terminal(), io.BytesIO()
    output = Output(stdout, stderr, prefixed=True)
    output.write(0, "stdout", b"\r10%")
    output.write(1, "stderr", b"warning\n")
    output.message("tfddlrun: news")
    output.finish()
    assert stderr.getvalue() == b"[1] warning\ntfddlrun: news\n"


def test_visible():
    assert visible(b"a\rb\r") == b"b"
    assert visible(b"\b\b\r50%") == b"50%"
    assert visible(b"") == b""


def test_streams_stay_apart_and_in_order():
    job = run_script(
        "for i in range(2000):\n"
        "    print('out', i); print('err', i, file=sys.stderr)\n"
        "print('no newline at the end', end='')",
        3,
    )
    assert job.code == 0
    for rank in range(3):
        for name, text in (("out", job.stdout), ("err", job.stderr)):
            mine = [
                line.removeprefix(f"[{rank}] ") for line in text.splitlines() if line.startswith(f"[{rank}]")
            ]
            assert mine[:2000] == [f"{name} {i}" for i in range(2000)]
    assert job.stdout.count("no newline at the end\n") == 3


def test_files_of_the_ranks(tmp_path):
    """Byte for byte, beside the usual output, which has the time here."""
    script = "sys.stdout.write(f'a{rank}\\rb'); sys.stderr.write('error\\n')"
    job = run_script(script, 2, "--output-filename", str(tmp_path / "out"), "--prefix-timestamp")
    assert job.code == 0
    assert re.fullmatch(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[[01]\] b\n){2}", job.stdout)
    for rank in (0, 1):
        folder = tmp_path / "out" / f"rank.{rank}"
        assert (folder / "stdout").read_bytes() == b"a%d\rb" % rank
        assert (folder / "stderr").read_text() == "error\n"


def test_names_and_loss_of_the_files_of_the_ranks(tmp_path):
    files = RankFiles(tmp_path, 11, 11)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"rank.{rank:02d}" for rank in range(11)]
    files.close()
    (tmp_path / "rank.03" / "stdout").unlink()
    (tmp_path / "rank.03" / "stdout").symlink_to("/dev/full")
    files = RankFiles(tmp_path, 11, 11)
    assert files.write(3, "stdout", b"x").startswith(f"cannot write to {tmp_path}/rank.03/stdout")
    assert files.write(3, "stdout", b"y") == files.write(4, "stdout", b"y") == ""
    files.close()
    assert (tmp_path / "rank.04" / "stdout").read_text() == "y"


def test_lines_come_at_once():
    """Python buffers its output to a pipe by default."""
    with running(["-np", "2", sys.executable, "-c", "import time; print('up'); time.sleep(500)"]) as job:
        assert select.select([job.process.stdout], [], [], LIMIT_S)[0]
        job.process.terminate()
        job.finish()


def test_ranks_see_a_terminal_where_tfddlrun_has_one():
    """On a terminal Keras redraws its progress bar on one line."""
    code = "import os, sys; print(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size().columns)"
    ours, theirs = os.openpty()
    try:
        with running(
            ["-np", "2", sys.executable, "-c", code], stdout=theirs, env={"COLUMNS": "70", "LINES": "20"}
        ) as job:
            assert job.finish().code == 0
        seen = b""
        while select.select([ours], [], [], 0.2)[0]:
            seen += os.read(ours, 4096)
    finally:
        os.close(ours)
        os.close(theirs)
    assert seen.count(b"True False 66\r\n") == 2


@pytest.mark.parametrize("full", [("stdout",), ("stderr",), ("stdout", "stderr")], ids="+".join)
def test_a_full_disk_does_not_end_the_job(full):
    """/dev/full takes no bytes, as a full disk."""
    code = "import os; [os.write(stream, b'line %d\\n' % i) for i in range(100) for stream in (1, 2)]"
    with open("/dev/full", "wb") as file:
        job = tfddlrun("-np", "2", sys.executable, "-c", code, **dict.fromkeys(full, file))
    assert job.code == 0
    outputs = {"stdout": job.stdout, "stderr": job.stderr}
    written = {name: text for name, text in outputs.items() if name not in full}
    for name in full:
        for text in written.values():
            loss = f"tfddlrun: cannot write to {name}, so output of the ranks is lost; the job goes on. Received: No space"
            assert text.count(loss) == 1
    for text in written.values():
        assert text.count("[1] line 99\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["tfddl.cli", "--version"],
        ["tfddl.cli", "cache", "--help"],
        ["tfddl.launch.run", "--dry-run", "-np", "2", "true"],
    ],
    ids=" ".join,
)
def test_a_full_disk_ends_a_command_with_one_line(arguments):
    with open("/dev/full", "wb") as file:
        ended = subprocess.run(
            [sys.executable, "-m", *arguments],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    said = (
        "Error: Cannot write the output: make room, or send it elsewhere. Received: No space left on device\n"
    )
    assert (ended.returncode, ended.stderr) == (1, said)


@pytest.mark.parametrize(
    ("closed", "left"), [(">&-", ["stderr"]), ("2>&-", ["stdout"]), ("<&- >&- 2>&-", [])]
)
def test_closed_streams(closed, left):
    code = "import os, sys; print(1); print(2, file=sys.stderr); os._exit(3)"
    job = tfddlrun("-np", "1", sys.executable, "-c", code, prefix=["sh", "-c", f'exec "$@" {closed}', "sh"])
    assert job.code == 3
    assert [name for name in ("stdout", "stderr") if getattr(job, name)] == left


def test_the_exit_code_outlives_the_reader():
    """The unfinished lines and the last words come after the end of the ranks."""
    reader, writer = os.pipe()
    os.close(reader)
    code = "import os; os.write(1, b'1'); os.write(2, b'2'); os._exit(3)"
    with running(["-np", "2", sys.executable, "-c", code], stdout=writer, stderr=writer) as job:
        os.close(writer)
        assert job.finish().code == 3


def test_a_slow_reader_of_a_pipe_that_does_not_block():
    ours, theirs = os.pipe2(os.O_NONBLOCK)
    os.set_blocking(ours, True)
    code = "print('x' * 100 * 1024)"
    with open(ours, "rb") as reader, running(["-np", "1", sys.executable, "-c", code], stdout=theirs) as job:
        os.close(theirs)
        time.sleep(1)
        assert len(reader.read()) == 100 * 1024 + 1
        assert job.finish().code == 0
