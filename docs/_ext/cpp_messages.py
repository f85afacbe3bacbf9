"""The error and warning messages of C++ sources, collected statement by statement."""

import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from message import Message, value, words

_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.DOTALL)
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_HEAD = re.compile(r"(?:^|\n)[A-Za-z#][^;{}]*?([A-Za-z_]\w*)\([^;{}]*$")
_SINK = re.compile(
    r"throw std::(?P<thrown>\w+)\("
    r"|absl::(?P<absl>\w+Error)\("
    r"|\b(?:MakeStatus|Status)\(\s*[\w:]*(?:Code|StatusCode)::k(?P<code>\w+),"
    r"|fprintf\(\s*(?P<stderr>stderr),"
    r"|\b(?P<call>FailAll|FailStalled|Fail|StallAll|Stop|SetLastError|Print)\("
)
_MADE = re.compile(r"\breturn\b|\*?\w*(?:error|reason|objection)_? \+?=(?=\s)")
_KINDS = {
    "runtime_error": "RuntimeError",
    "logic_error": "RuntimeError",
    "Fail": "UnknownError",
    "FailAll": "UnknownError",
    "FailStalled": "UnknownError",
    "StallAll": "UnknownError",
    "Stop": "UnknownError",
    "Print": "warning",
    "SetLastError": "",
    "stderr": "stderr",
}
_NAME = re.compile(r"[A-Za-z_]\w*")
_NOISE = {"std", "to_string", "string", "static_cast", "int64_t", "int", "c_str", "return"}
_PRINTF = re.compile(r"%[-.\d]*(?:l*[dufsg]|zu)")
_STRING_VARIABLE = re.compile(r"\s*(?:const std::string|constexpr char) (\w+)(?:\[\])? =(.*)", re.DOTALL)
_LIMIT = 12


class CppMessages:
    """The messages of all C++ files below a folder.

    Args:
        folder: Path of the sources.
        ignored: Names of folders that hold no sources of the library.
    """

    def __init__(self, folder: Path, ignored: tuple[str, ...]):
        self._root = folder.parent
        self._files = [
            file
            for file in sorted(folder.rglob("*"))
            if file.suffix in (".cc", ".h") and not set(ignored) & set(file.parts)
        ]
        # By file, function and variable (empty for what the function returns): expressions, and where they stand.
        self._made: dict[tuple[Path, str, str], list[str]] = {}
        self._used = set[tuple[Path, str]]()

    def collect(self) -> list[Message]:
        """All messages, by file and line; one that reaches another message as a part is no message of its own."""
        places = [(file, *each) for file in self._files for each in _statements(file.read_text())]
        for file, _, function, text in places:
            if returned := re.match(r"\s*(?:(?:if|for) \(.*\)|else)?\s*return\b(.*)", text, re.DOTALL):
                self._made.setdefault((file, function, ""), []).append(returned[1])
            elif assigned := _STRING_VARIABLE.match(text):
                self._made.setdefault((file, function, assigned[1]), []).append(assigned[2])
        found = set[Message]()
        for pattern in (_SINK, _MADE):  # a returned text comes after those that use it
            for file, line, function, text in places:
                sink = pattern.search(text)
                if not sink or (pattern is _MADE and ((file, function) in self._used or _SINK.search(text))):
                    continue
                name = sink[sink.lastgroup] if sink.lastgroup else "SetLastError"
                kind = _KINDS.get(name, name if name.endswith("Error") else f"{name}Error")
                form, *values = _arguments(text[sink.end() :]) if name == "stderr" else [text[sink.end() :]]
                parts = [self._texts(each, file, function) for each in (form, *values)]
                for whole, *put_in in itertools.islice(itertools.product(*parts), _LIMIT):
                    filled = functools.reduce(
                        lambda so_far, each: so_far.replace("{...}", each, 1), put_in, whole
                    )
                    # A literal that begins with punctuation continues another text.
                    if words(filled) > (2 if sink.lastgroup else 4) and filled[0] not in ",:;":
                        found.add(Message(str(file.relative_to(self._root)), line, kind, filled))
        return sorted(found)

    def _texts(self, code: str, file: Path, function: str, depth: int = 0) -> list[str]:
        """The texts that an expression may make."""
        parts: list[list[str]] = []
        end = 0
        for literal in _STRING.finditer(code):
            between = code[end : literal.start()]
            if re.fullmatch(r"\s*:\s*", between) and parts:
                parts[-1] = [*parts[-1], _plain(literal[1])]  # the other branch of `a ? "x" : "y"`
            else:
                parts += [self._values(between, file, function, depth), [_plain(literal[1])]]
            end = literal.end()
        parts.append(self._values(code[end:], file, function, depth))
        products = itertools.islice(itertools.product(*parts), _LIMIT)
        return [" ".join("".join(each).split()) for each in products]

    def _values(self, code: str, file: Path, function: str, depth: int) -> list[str]:
        """The texts between two literals: nothing, those of a function or a name, or a value."""
        branch = " / " if depth == 0 and re.search(r"(?<!:):(?!:)", code) else ""
        if "?" in code:  # what stands before the condition, without it
            code = re.sub(r"\(\s*(?:[^()?]|\([^()]*\))*\?.*", "", code, flags=re.DOTALL)
        code = re.split(r"\?|(?<!:):(?!:)", code)[-1]
        names = [name for name in _NAME.findall(code) if name not in _NOISE]
        if not names:
            return [branch]
        called = _NAME.findall(re.sub(r"\(.*\)", "", code, flags=re.DOTALL))
        for name in called if depth < 3 else ():
            for of, variable in ((function, name), ("", name), (name, "")):
                made = self._made.get((file, of, variable), [])
                texts = [text for each in made for text in self._texts(each, file, of, depth + 1)]
                if any(words(text) > 2 for text in texts):
                    self._used.add((file, of if of == name else ""))
                    return [branch + text for text in texts[:_LIMIT]]
        return [branch + value(names[-1])]


def _statements(source: str) -> Iterator[tuple[int, str, str]]:
    """The statements of a file: line, function, text. Strings keep their places, comments are blank."""
    code = _COMMENT_OR_STRING.sub(
        lambda found: found[0] if found[0][0] == '"' else re.sub(r"[^\n]", " ", found[0]), source
    ).replace("\\\n", " \n")
    masked = _STRING.sub(lambda found: "x" * len(found[0]), code)
    begin, function = 0, ""
    for end in (found.end() for found in re.finditer(r"[;{}]", masked)):
        text = code[begin:end]
        if masked[end - 1] == "{" and (head := _HEAD.search(code[begin : end - 1])):
            function = head[1]
        first = begin + len(text) - len(text.lstrip())
        yield code.count("\n", 0, first) + 1, function, text
        begin = end


def _plain(literal: str) -> str:
    return _PRINTF.sub("{...}", literal.replace("\\n", " ").replace('\\"', '"'))


def _arguments(code: str) -> list[str]:
    """The arguments of a call, of which the first parenthesis is missing."""
    found, depth, begin = list[str](), 0, 0
    masked = _STRING.sub(lambda found: "x" * len(found[0]), code)
    for place, letter in enumerate(masked):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 and letter == ",":
            found.append(code[begin:place])
            begin = place + 1
    return [*found, code[begin:].rstrip("; \n)")]
