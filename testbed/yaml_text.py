"""YAML text that people wrote: whatever is wrong with it is named with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from testbed.errors import InputError

DEEPEST = 50  # levels of lists and mappings within each other; what reads them may recurse
# What constructing a value raises that has the form of a date or a number without being one: 2020-13-45, 0x_
_IMPOSSIBLE = (ValueError, OverflowError, LookupError, AttributeError, TypeError)
_KINDS = {"int": "number", "float": "number", "timestamp": "date", "bool": "true or false"}


def read(path: Path) -> tuple[Any, yaml.Node | None]:
    """A file's content, and its nodes, which know their lines; both None when it is empty.

    Raises:
        InputError: file, line and what is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        return parse(text, str(path))
    except yaml.reader.ReaderError as error:
        where = f"{path} line {text.count(chr(10), 0, error.position) + 1}"
        raise InputError(where, f"is not valid YAML: found the character {chr(error.character)!r}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path} line {mark.line + 1}" if mark else str(path)
        raise InputError(where, f"is not valid YAML: {getattr(error, 'problem', None) or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(str(path), f"is not UTF-8 text (byte {error.start}); expected a YAML file") from None
    except OSError as error:
        raise InputError(str(path), f"can't be read: {error.strerror}") from None


def parse(text: str, name: str) -> tuple[Any, yaml.Node | None]:
    """As `read`, of a text; `name`: what it is called in messages. Raises YAMLError, too: it is not YAML."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, None
        _check(node, name, loader, (), {})
        return loader.construct_document(node), node
    except RecursionError:
        raise _too_deep(_deepest_line(text), name) from None


def _check(node: yaml.Node, name: str, loader: yaml.SafeLoader, above: tuple[int, ...], levels: dict[int, int]) -> int:
    """The levels of a node. above: those around it. levels: of those checked already, which aliases name again."""
    line = node.start_mark.line + 1
    if id(node) in above:
        raise InputError(f"{name} line {line}", "contains itself, by an alias")
    if id(node) not in levels:
        if isinstance(node, yaml.ScalarNode):
            _check_scalar(node, f"{name} line {line}", loader)
            levels[id(node)] = 0
        elif len(above) >= DEEPEST:
            raise _too_deep(line, name)
        else:
            parts = (part for item in node.value for part in (item if isinstance(item, tuple) else (item,)))
            inner = (_check(part, name, loader, (*above, id(node)), levels) for part in parts)
            levels[id(node)] = 1 + max(inner, default=0)
    if len(above) + levels[id(node)] > DEEPEST:
        raise _too_deep(line, name)
    return levels[id(node)]


def _check_scalar(node: yaml.ScalarNode, where: str, loader: yaml.SafeLoader) -> None:
    if node.tag not in loader.yaml_constructors:  # a merge, or a tag that its document is refused for
        return
    try:
        loader.construct_object(node)
    except _IMPOSSIBLE as error:
        kind = node.tag.rpartition(":")[2]
        why = f" ({error})" if kind == "timestamp" and type(error) is ValueError else ""
        raise InputError(
            where,
            f"found {node.value[:40]!r}, which is no possible {_KINDS.get(kind, kind)}{why}; "
            "expected one, or quotes around a text",
        ) from None


def _too_deep(line: int, name: str) -> InputError:
    return InputError(f"{name} line {line}", f"is nested too deeply; expected at most {DEEPEST} levels")


def _deepest_line(text: str) -> int:
    """Where DEEPEST levels are passed. The events of a text come without recursion."""
    level = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > DEEPEST:
            return event.start_mark.line + 1
    return 1
