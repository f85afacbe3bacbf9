"""YAML whose numbers keep their spelling, and in which each key comes once."""

from __future__ import annotations

from typing import Any

import yaml


class _Whole(int):
    """A whole number, which is 8 for 010 in YAML 1.1. As text it is as the file spells it."""

    text: str

    def __str__(self) -> str:
        return self.text


class _Real(float):
    """A number, which is 1.1 for 1.10. As text it is as the file spells it."""

    text: str

    def __str__(self) -> str:
        return self.text


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys: list[Any] = []
        for key, _ in node.value:
            if key.value in keys:
                line = key.start_mark.line + 1
                raise ValueError(
                    f"A key comes twice: leave one out. Received: {key.value} again in line {line}"
                )
            keys.append(key.value)
        return node

    def whole(self, node: yaml.ScalarNode) -> _Whole:
        """Makes a whole number."""
        number = _Whole(self.construct_yaml_int(node))
        number.text = node.value
        return number

    def real(self, node: yaml.ScalarNode) -> _Real:
        """Makes another number."""
        number = _Real(self.construct_yaml_float(node))
        number.text = node.value
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.whole)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.real)


def load(text: str) -> Any:
    """Reads a text.

    Raises:
        yaml.YAMLError: The text is not YAML.
        ValueError: A key comes twice.
    """
    return yaml.load(text, _Loader)
