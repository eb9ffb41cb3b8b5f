"""When a device whose state is logged counts as available: 'charging and wifi and battery >= 50'."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.errors import InputError

_TOKEN = re.compile(r"\s*(>=|<=|!=|==|=|>|<|\(|\)|[A-Za-z_][\w+\-]*|\d+(?:\.\d+)?|'[^']*'|\"[^\"]*\")")
_DEEPEST = 50


@dataclass(frozen=True)
class Rule:
    """A condition over named states. text: as written."""

    text: str
    tree: tuple

    @classmethod
    def parse(cls, text: str, where: str = "--rule") -> Rule:
        """Names are true or false; `name OP value` compares; and, or, not and brackets combine.

        Raises:
            InputError: it can't be understood; says at which word.
        """
        tokens, at = [], 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if not match:
                raise InputError(
                    where,
                    f"rule {text!r}: can't read {text[at:].lstrip()[:10]!r}; expected names, and, or, "
                    "not, brackets and comparisons such as battery >= 50",
                )
            tokens.append(match[1])
            at = match.end()
        parser = _Parser(tokens, text, where)
        tree = parser.either(0)
        if parser.at < len(tokens):
            raise parser.error(f"unexpected {tokens[parser.at]!r}")
        return cls(text, tree)

    def holds(self, state: Mapping[str, Any]) -> bool:
        """Whether the condition holds; a name that the state lacks is false."""
        return bool(_value(self.tree, state))

    def names(self) -> set[str]:
        return _names(self.tree)


class _Parser:
    def __init__(self, tokens: list[str], text: str, where: str):
        self.tokens, self.text, self.where, self.at = tokens, text, where, 0

    def error(self, message: str) -> InputError:
        return InputError(self.where, f"rule {self.text!r}: {message}")

    def peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def next(self) -> str:
        token = self.peek()
        if token is None:
            raise self.error("ends too early")
        self.at += 1
        return token

    def either(self, depth: int) -> tuple:
        left = self.both(depth)
        while self.peek() in ("or", "OR"):
            self.next()
            left = ("or", left, self.both(depth))
        return left

    def both(self, depth: int) -> tuple:
        left = self.single(depth)
        while self.peek() in ("and", "AND"):
            self.next()
            left = ("and", left, self.single(depth))
        return left

    def single(self, depth: int) -> tuple:
        if depth > _DEEPEST:
            raise self.error("is nested too deeply")
        token = self.next()
        if token in ("not", "NOT"):
            return ("not", self.single(depth + 1))
        if token == "(":
            inner = self.either(depth + 1)
            if self.next() != ")":
                raise self.error("a bracket is not closed")
            return inner
        if not (token[0].isalpha() or token[0] == "_") or token in ("and", "or"):
            raise self.error(f"unexpected {token!r}")
        if self.peek() in (">=", "<=", "!=", "==", "=", ">", "<"):
            operator, value = self.next(), self.next()
            return ("compare", token.lower(), "==" if operator == "=" else operator, value.strip("'\""))
        return ("name", token.lower())


def _value(tree: tuple, state: Mapping[str, Any]) -> bool:
    kind = tree[0]
    if kind == "or":
        return _value(tree[1], state) or _value(tree[2], state)
    if kind == "and":
        return _value(tree[1], state) and _value(tree[2], state)
    if kind == "not":
        return not _value(tree[1], state)
    if kind == "name":
        return bool(state.get(tree[1]))
    _, name, operator, text = tree
    found = state.get(name)
    if found is None:
        return False
    if operator in ("==", "!="):
        return (str(found).lower() == text.lower()) == (operator == "==")
    try:
        a, b = float(found), float(text)
    except (TypeError, ValueError):
        return False
    return {">=": a >= b, "<=": a <= b, ">": a > b, "<": a < b}[operator]


def _names(tree: tuple) -> set[str]:
    if tree[0] in ("name", "compare"):
        return {tree[1]}
    return set().union(*(_names(part) for part in tree[1:]))


def known_names(rule: Rule, names: set[str], where: str) -> None:
    """Refuse a rule that speaks of states the format does not have.

    Raises:
        InputError: with the nearest one.
    """
    from testbed.errors import unknown

    for name in sorted(rule.names() - names):
        raise unknown(where, "state in the rule", name, names)
