"""Reads a Dockerfile and a definition file of Apptainer, as far as those of deploy/ go."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

_CONTINUED = re.compile(r"\\\n(?:\s*#[^\n]*\n)*")
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
INSTRUCTIONS = ("RUN", "COPY", "ARG", "ENV", "WORKDIR")


@dataclass(frozen=True)
class Recipe:
    """What builds an image.

    Attributes:
        base: string, the image that it begins with, such as "python:3.12-slim-bookworm".
        steps: list of an instruction of Docker and its arguments.
        environment: string, a script that runs before each command of the image.
        start: string, the script that `apptainer run` starts; empty for Docker.
    """

    base: str
    steps: list[tuple[str, str]]
    environment: str = ""
    start: str = ""


def read_dockerfile(text: str) -> Recipe:
    """The recipe of a Dockerfile.

    Raises:
        ValueError: it has an instruction that this program does not know.
    """
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")) + "\n"
    base, steps = "", []
    for line in filter(None, (line.strip() for line in _CONTINUED.sub("", lines).splitlines())):
        keyword, _, rest = line.partition(" ")
        if keyword == "FROM":
            base = rest.strip()
        elif keyword in INSTRUCTIONS:
            steps.append((keyword, rest.strip()))
        else:
            raise ValueError(f"packages/containers takes FROM, {', '.join(INSTRUCTIONS)}. Received: {line}")
    return Recipe(base, steps)


def read_definition(text: str) -> Recipe:
    """The recipe of a definition file.

    Raises:
        ValueError: it has a section that this program does not know.
    """
    header, *rest = re.split(r"^%(\w+)[^\n]*\n", text, flags=re.MULTILINE)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    unknown = set(sections) - {"files", "post", "environment", "runscript"}
    base = re.search(r"^From: *(\S+)", header, re.MULTILINE)
    if unknown or not base:
        raise ValueError(
            f"packages/containers takes %files, %post, %environment, %runscript. Received: {unknown}"
        )
    files = [line for line in sections.get("files", "").splitlines() if line.strip()]
    steps = [*(("COPY", line.strip()) for line in files), ("RUN", sections.get("post", ""))]
    return Recipe(base[1], steps, sections.get("environment", ""), sections.get("runscript", ""))


def assignment(arguments: str, variables: dict[str, str]) -> tuple[str, str]:
    """The name and the value of ENV and ARG, with the variables before it."""
    (word,) = shlex.split(_VARIABLE.sub(lambda match: variables.get(match[1] or match[2], ""), arguments))
    name, _, value = word.partition("=")
    return name, value
