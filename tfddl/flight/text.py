"""Ranks, times and operations as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tfddl.runtime.agreement import first_few

_SHOWN = 3
_SPANS = 8


def in_ranges(ranks: Iterable[int]) -> str:
    """The ranks as a noun, neighbours as a range: "rank 1", "ranks 0-511, 514", or "ranks 0, 2, 4, ... (500 ranks)"."""
    numbers = sorted(set(ranks))
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [
        f"{first}" if first == last else f"{first}, {last}" if last == first + 1 else f"{first}-{last}"
        for first, last in spans
    ]
    if len(texts) > _SPANS:
        texts[_SPANS:] = [f"... ({len(numbers)} ranks)"]
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(texts)}"


def capital(text: str) -> str:
    """The text with a capital letter at its begin."""
    return text[:1].upper() + text[1:]


def duration(seconds: float) -> str:
    """A length of time: "12.3 s", "3 min 20 s" or "2 h 5 min"."""
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60} min"


def arguments(signature: str) -> str:
    """Kind, operation and tensors of a signature: "allreduce Sum of float32 [1000]"; empty without a signature."""
    kind, operation, tensors = "", "", []
    for text in signature.split("|"):
        name, _, value = text.partition("=")
        if name == "collective":
            kind = value
        elif name == "op":
            operation = f" {value}"
        elif name in ("tensor", "gradients"):
            tensors.append(value)
    of = f" of {first_few(tensors)}" if tensors and kind else first_few(tensors)
    return f"{kind}{operation}{of}"


def differences(signatures: Sequence[str]) -> list[str]:
    """For each signature the fields that are not equal in all of them, as text."""
    fields = [_fields(signature) for signature in signatures]
    names = list(dict.fromkeys(name for each in fields for name in each))
    differing = [name for name in names if len({each.get(name) for each in fields}) > 1]
    if "collective" in differing:  # different collectives have different fields
        differing = ["collective"]
    return [
        first_few([_field(name, each.get(name)) for name in differing]) or "equal arguments"
        for each in fields
    ]


def in_short(reason: str) -> str:
    """An error message in one line. The errors of TensorFlow have a stack in their middle."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    if len(lines) <= _SHOWN:
        return " ".join(lines)
    return f"{lines[0]} ... {next((line for line in lines if line.startswith('tfddl ')), lines[-1])}"


def _fields(signature: str) -> dict[str, str]:
    """The fields of a signature. Fields of one name, as of several tensors, are numbered."""
    found: dict[str, str] = {}
    counts: dict[str, int] = {}
    for text in signature.split("|"):
        name, _, value = text.partition("=")
        counts[name] = counts.get(name, 0) + 1
        found[name if counts[name] == 1 else f"{name} {counts[name]}"] = value
    return found


def _field(name: str, value: str | None) -> str:
    if name.split(" ")[0] in ("tensor", "collective", "gradients") and value is not None:
        return value
    return f"no {name}" if value is None else f"{name}={value}"
