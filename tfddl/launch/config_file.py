"""The option --config-file: options of tfddlrun in a file, in the form that horovodrun reads."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tfddl.launch import horovod_settings, variables
from tfddl.launch.streams.commands import program_of

# Section of the file -> how the names of the options below it begin.
_SECTIONS = {
    "params": "",
    "library-options": "",
    "timeline": "timeline-",
    "stall-check": "stall-check-",
    "autotune": "autotune-",
    "logging": "log-",
}
# Variables that options set -> the parameters of these options.
_OPTIONS = {
    "TFDDL_TIMELINE": "timeline",
    "TFDDL_TIMELINE_MARK_CYCLES": "mark_cycles",
    "TFDDL_KERAS2_SPELLINGS": "no_keras2_spellings",
}
# They say what else to print, or where the file is.
_NOT_IN_A_FILE = ("config-file", "help", "version", "check-build", "command")


def take(context: click.Context, option: click.Parameter, path: Path | None) -> dict[str, str]:
    """Callback of the option: the file's values become defaults of the command's options.

    Returns:
        The variables of the file, which are set from here on. A variable that the shell has set keeps the shell's value,
        also where the shell has set Horovod's variable of this meaning.

    Raises:
        click.BadParameter: The file cannot be read, or has a key that is no option.
        click.UsageError: See `variables.given`; or a variable of Horovod has a value of the wrong form.
    """
    if path is None:
        return {}
    shell = _shell()
    try:
        settings = read(path)
        found, rest = horovod_settings.split(settings)
        defaults = _defaults(context, rest)
    except ValueError as error:
        raise click.BadParameter(f"{path}: {error}", context, option) from None
    # Not as the default of -x, which a single -x on the command line would replace.
    found |= variables.given(defaults.pop("variables", []))
    context.default_map = {**(context.default_map or {}), **defaults}
    added = {name: shell.get(name, value) for name, value in found.items()}
    os.environ.update(added)
    return added


def with_shell(options: Mapping[str, str], context: click.Context) -> dict[str, str]:
    """Takes the shell's values for variables of options that the file has given.

    Args:
        options: Variables that options of tfddlrun give to the ranks.
        context: The command's.
    """
    of_file = {
        name
        for name in options
        if context.get_parameter_source(_OPTIONS[name]) is ParameterSource.DEFAULT_MAP
    }
    shell = _shell() if of_file else {}
    return {name: shell.get(name, value) if name in of_file else value for name, value in options.items()}


def _shell() -> dict[str, str]:
    """The variables of the shell, and tfddl's where it has only Horovod's."""
    try:
        return {**horovod_settings.translated(os.environ), **os.environ}
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def read(path: Path) -> dict[str, Any]:
    """Reads a file.

    Returns:
        Values by the names of options, without the dashes in front.

    Raises:
        ValueError: The file is not YAML of this form.
    """
    import yaml  # 30 ms, which a start without such a file need not wait for

    from tfddl.launch import yaml_file

    try:
        content = yaml_file.load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(
            f"The file has to be YAML: write lines such as 'num-proc: 4'. Received: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(content, dict):
        received = "an empty file" if content is None else repr(content)
        raise ValueError(
            f"The file has options and values: write lines such as 'num-proc: 4'. Received: {received}"
        )
    settings: dict[str, Any] = {}
    for name, value in _options(content):
        _once(settings, name, name, value)
    return settings


def _options(content: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    """The names of options and their values, also those in sections."""
    for key, value in content.items():
        name = _name(key)
        if name not in _SECTIONS:
            yield name, value
        elif isinstance(value, dict):
            yield from ((_SECTIONS[name] + _name(inner), each) for inner, each in value.items())
        else:
            raise ValueError(f"{key} is a section: write its options below it, indented. Received: {value!r}")


def _once(settings: dict[str, Any], name: str, spelling: str, value: Any) -> None:
    """Adds a setting, unless the file has it already, in another spelling or another section."""
    if name in settings:
        raise ValueError(
            f"{spelling} is in the file twice: keep one. Received: {settings[name]!r} and {value!r}"
        )
    settings[name] = value


def _name(key: Any) -> str:
    """Horovod's files have underscores, its options dashes."""
    return str(key).replace("_", "-")


def _defaults(context: click.Context, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings by the names of the command's parameters."""
    program = program_of(context)
    parameters = {
        spelling.lstrip("-"): parameter
        for parameter in context.command.params
        if isinstance(parameter, click.Option)
        for spelling in parameter.opts
    }
    defaults: dict[str, Any] = {}
    for name, value in settings.items():
        if name in horovod_settings.WITHOUT_EFFECT:
            click.echo(
                f"{program}: {name} in the file of --config-file changes nothing in tfddl; leave it out",
                err=True,
            )
        elif name in parameters and name not in _NOT_IN_A_FILE:
            if value is not None:  # else the option is not given
                _once(defaults, str(parameters[name].name), name, _value(name, value, parameters[name]))
        else:
            near = difflib.get_close_matches(name, parameters.keys() - _NOT_IN_A_FILE, 1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(
                f"{name} is not an option that a file may have: use the long options of `{program} --help`, or "
                f"Horovod's sections {', '.join(_SECTIONS)}. Received: {name}: {value!r}{meant}"
            )
    return defaults


def _value(name: str, value: Any, option: click.Option) -> Any:
    """A value of the file as the command line would have it."""
    if option.is_flag:
        wanted = "true or false"
        if isinstance(value, str):
            return value
        if value in (False, True):  # or 0 or 1
            return bool(value)
    elif option.multiple:
        wanted = "a list of texts"
        items = _items(value)
        if all(map(_is_word, items)):
            return list(map(str, items))
    elif option.nargs > 1:
        wanted = f"a list of {option.nargs} numbers"
        if isinstance(value, list) and len(value) == option.nargs and all(map(_is_word, value)):
            return [_text(each, option) for each in value]
    else:
        wanted = "one text or number"
        if _is_word(value):
            return _text(value, option)
    raise ValueError(
        f"{name} takes {wanted}: write one, and words like 'yes' in quotes. Received: {name}: {value!r}"
    )


def _text(value: Any, option: click.Option) -> str:
    """A word for the command line. For an option that is a number, YAML's .inf is inf, and 0x10 is 16."""
    is_number = isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
    return repr(value) if is_number and not isinstance(value, str) else str(value)


def _items(value: Any) -> list[Any]:
    """The items of a list, or one item; NAME=VALUE for those of a mapping, and NAME where it has no value."""
    items: list[Any] = []
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            items += [left if right is None else _variable(left, right) for left, right in each.items()]
        else:
            items.append(each)
    return items


def _variable(name: Any, value: Any) -> str:
    if not _is_word(value):
        raise ValueError(
            f"env takes texts and numbers: write words like 'yes' in quotes. Received: {name}: {value!r}"
        )
    return f"{name}={value}"


def _is_word(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
