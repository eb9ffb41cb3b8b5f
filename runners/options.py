"""Options of runners as pydantic models: what an experiment may say in `training:` beyond the schema's own keys."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from testbed import units
from testbed.errors import InputError, nearest, together, unknown

WHERE = "training"


@dataclass(frozen=True)
class Expected:
    """What an option takes, in words, for error messages: `Annotated[int, Expected("a number of …")]`."""

    text: str


class Options(BaseModel):
    """A base of options: a field each, with its default. Values are taken as they are, nothing is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Options as given, checked.

        Raises:
            InputError: unknown keys or impossible values: all of them, each with key, value, expectation and the
                nearest right one.
        """
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            problems: dict[str, InputError] = {}
            for item in error.errors(include_url=False):  # of a union, the first that did not take it
                key = str(item["loc"][0])
                problems.setdefault(key, cls._problem(key, given.get(key), item))
            raise together(list(problems.values())) from None

    @classmethod
    def _problem(cls, key: str, value: Any, item: Mapping[str, Any]) -> InputError:
        where = f"{WHERE}.{key}"
        if item["type"] == "extra_forbidden":
            return unknown(where, f"option of runner {cls.__module__.split('.')[-2]!r}", key, cls.model_fields)
        if item["type"] == "value_error":
            return InputError(where, str(item["ctx"]["error"]))
        field = cls.model_fields[key]
        words = [str(choice) for choice in _literals(field.annotation)]
        said = next((m.text for m in field.metadata if isinstance(m, Expected)), None)
        expected = said or (f"one of: {', '.join(words)}" if words else "true or false")
        near = nearest(value, words) if isinstance(value, str) else None
        return InputError(
            where, f"{value!r}; expected {expected}", hint=f"did you mean {near!r}?" if near is not None else None
        )


def _literals(annotation: Any) -> list[Any]:
    """The values of the Literals in a type."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return [value for part in get_args(annotation) for value in _literals(part)]
    return []


def _rate(value: Any) -> float:
    found = units.parse("rate", value)
    if not found > 0:
        raise ValueError(f"{value!r}; expected a rate above 0")
    return found


Rate = Annotated[float, BeforeValidator(_rate)]  # text such as '8 Gbit/s' in the file, bit/s in the code
CheckpointEvery = Annotated[int, Field(ge=0), Expected("a number of steps (0: no checkpoints)")]
