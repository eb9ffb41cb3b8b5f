"""The experiment file's reference as Markdown, from the schema itself, so that docs/experiment.md can't drift."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from testbed import units
from testbed.experiment.loading import _inner_model
from testbed.experiment.schema import Experiment

_KINDS = {"rate": units.rate, "duration": units.duration, "size": units.size, "speed": units.speed}


def markdown() -> str:
    """One table a section: key, what it takes, default, meaning."""
    parts = [_table("Top level", Experiment, skip_sections=True)]
    for name, field in Experiment.model_fields.items():
        model = _inner_model(field.annotation)
        if model is not None:
            parts += _section(name, model)
    return "\n\n".join(parts) + "\n"


def _section(name: str, model: type[BaseModel]) -> list[str]:
    doc = (model.__doc__ or "").strip()
    own = _table(f"`{name}`", model, doc="" if doc.startswith("Usage docs") else doc)
    nested = [
        part
        for key, field in model.model_fields.items()
        if (inner := _inner_model(field.annotation)) is not None
        for part in _section(f"{name}.{key}", inner)
    ]
    return [own, *nested]


def _table(title: str, model: type[BaseModel], *, doc: str = "", skip_sections: bool = False) -> str:
    rows = []
    for key, field in model.model_fields.items():
        if skip_sections and _inner_model(field.annotation) is not None:
            continue
        rows.append(f"| `{key}` | {_takes(model, key)} | {_default(field, model, key)} | {field.description or ''} |")
    head = "| key | takes | default | meaning |\n| --- | --- | --- | --- |\n"
    return f"### {title}\n\n" + (f"{doc}\n\n" if doc else "") + head + "\n".join(rows)


def _property(model: type[BaseModel], key: str) -> dict[str, Any]:
    return model.model_json_schema()["properties"][key]


def _takes(model: type[BaseModel], key: str) -> str:
    return _schema_text(_property(model, key))


def _schema_text(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(t for t in (_schema_text(s) for s in schema["anyOf"]) if t != "null")
    if "enum" in schema:
        return ", ".join(f"`{v}`" for v in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "x-quantity" in schema:
        return f"{schema['x-quantity']}, e.g. `{schema['examples'][0]}`"
    if "$ref" in schema:
        return "section"
    kind = schema.get("type", "")
    if kind == "array" and "items" in schema:
        return f"list of {_schema_text(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"name: {_schema_text(schema['additionalProperties'])}"
    return {"integer": "whole number", "number": "number", "string": "text", "boolean": "true, false"}.get(kind, kind)


def _default(field: Any, model: type[BaseModel], key: str) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else field.default_factory()
    if isinstance(value, BaseModel) or value in (None, {}, [], ""):
        return ""
    quantity = _property(model, key).get("x-quantity")
    if quantity:
        return f"`{_KINDS[quantity](value)}`" if value else "`0`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
