"""Reading an experiment file: YAML with line numbers, --set overrides, and errors that say where and what."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from testbed import yaml_text
from testbed.errors import InputError, looking, nearest, together
from testbed.experiment.schema import Experiment
from testbed.shipped import EXPERIMENTS, SHIPPED

MOST_VALUES = 300_000  # of a file


@dataclass(frozen=True)
class LoadedExperiment:
    """A validated experiment, the file that it came from, and its text with the overrides applied.

    auto_tdf: the file says `tdf: auto`; until it is chosen (`dilated`), the experiment's is 1.
    """

    experiment: Experiment
    path: Path
    data: dict[str, Any]
    lines: dict[tuple, int]
    auto_tdf: bool = False

    def dilated(self, tdf: float) -> LoadedExperiment:
        """The same with this time dilation factor."""
        experiment = self.experiment.model_copy(update={"tdf": tdf})
        return replace(self, experiment=experiment, data={**self.data, "tdf": tdf}, auto_tdf=False)

    def where(self, *keys: str | int) -> str:
        """'file.yaml line 7, links.trace' for error messages."""
        return _where(self.path, keys, self.lines)

    @contextmanager
    def placing(self, *sections: str) -> Iterator[None]:
        """What is wrong with a key of one of these sections ('training.steps') is told with its file and line."""
        try:
            yield
        except InputError as error:
            keys = error.where.split(".")
            if keys[0] not in sections:
                raise
            raise error.at(lambda where: self.where(*where.split("."))) from None

    def file(self, text: str, *keys: str | int, folders: bool = False) -> Path:
        """The file that `text` at `keys` names: from the working directory, the experiment's folder or the
        package.

        folders: a folder will do, too.

        Raises:
            InputError: no such file; the nearest existing name is suggested.
        """
        given = Path(text).expanduser()
        bases = [Path.cwd(), self.path.parent, SHIPPED]
        candidates = [given] if given.is_absolute() else [base / given for base in bases]
        with looking(self.where(*keys)):
            for candidate in candidates:
                if candidate.is_file() or (folders and candidate.is_dir()):
                    return candidate.resolve()
            if any(c.exists() for c in candidates):
                raise InputError(self.where(*keys), f"{text} is no file of that kind (a device or a folder)")
            siblings = [p.name for c in candidates if c.parent.is_dir() for p in c.parent.iterdir()]
        near = nearest(given.name, siblings)
        looked = ", ".join(map(str, dict.fromkeys(bases)))
        raise InputError(
            self.where(*keys),
            f"no such file: {text}",
            hint=f"did you mean {given.parent / near}?" if near else f"looked in {looked}",
        )


def load_experiment(
    name: str | Path, overrides: tuple[str, ...] = (), *, seed: int | None = None, tdf: str | float | None = None
) -> LoadedExperiment:
    """Read and validate an experiment file.

    Args:
        name: a path, or the name of a ready-made experiment (``quickstart``).
        overrides: ``a.b=c`` items of --set; the value is YAML.
        seed: replaces the experiment's seed.
        tdf: replaces the experiment's time dilation factor; 'auto' is left to be chosen.

    Raises:
        InputError: with file, line or key, value and expectation, for all problems found at once.
    """
    path = find_experiment(name)
    data, lines = parse(path)
    for item in overrides:
        _override(data, item, lines)
    set_keys = {item.partition("=")[0].strip() for item in overrides}
    for key, value in (("seed", seed), ("tdf", tdf)):
        if value is not None:
            if key in set_keys:
                raise InputError(f"--{key}, --set {key}=…", "say the same thing; expected one of them")
            data[key] = value
    loaded = validated(data, path, lines)
    sweep_points(loaded)  # checks them: also where the experiment is used without its sweep
    return loaded


def validated(data: dict[str, Any], path: Path, lines: dict[tuple, int] | None = None) -> LoadedExperiment:
    """An experiment from its data. `path`: the file that it came from, beside which others are looked for."""
    lines = lines or {}
    try:
        experiment = Experiment.model_validate(data)
    except ValidationError as error:
        raise _explain(error, path, lines) from None
    loaded = LoadedExperiment(experiment, path, data, lines)
    return replace(loaded.dilated(1.0), data=data, auto_tdf=True) if experiment.tdf == "auto" else loaded


def sweep_points(loaded: LoadedExperiment, last: Sequence[str] = ()) -> list[LoadedExperiment]:
    """The experiments of `sweep:`, in order; just `loaded` itself without one. Raises InputError.

    last: ``a.b=c`` items that hold whatever an entry says.
    """
    entries = loaded.data.get("sweep") or []
    points = []
    for i, entry in enumerate(entries):
        data = copy.deepcopy({k: v for k, v in loaded.data.items() if k != "sweep"})
        lines = dict(loaded.lines)
        with in_entry(i):
            for key, value in entry.items():
                line = _line(("sweep", i, key), lines)
                where = _where(loaded.path, (key,), {(key,): line})
                _assign(data, key, copy.deepcopy(value), lines, where, line)
            for item in last:
                _override(data, item, lines)
            points.append(validated(data, loaded.path, lines))
    return points or [loaded]


@contextmanager
def in_entry(number: int) -> Iterator[None]:
    """While an entry of `sweep` is checked: what is wrong with it says which one it is."""
    try:
        yield
    except InputError as error:
        raise error.at(lambda where: f"{where}, in sweep.{number}") from None


@looking()
def find_experiment(name: str | Path) -> Path:
    """The file of that path or ready-made name. Raises InputError naming the nearest."""
    path = Path(name).expanduser()
    if path.is_file():
        return path.resolve()
    if path.is_dir():
        raise InputError(str(name), "is a folder; expected an experiment file (YAML)")
    if path.parent == Path("."):
        for folder in (Path("experiments"), EXPERIMENTS):  # the user's own comes first
            ready = folder / f"{name}.yaml"
            if ready.is_file():
                return ready.resolve()
    names = {p.stem for folder in (Path("experiments"), EXPERIMENTS) for p in folder.glob("*.yaml")}
    near = nearest(path.stem, names)
    raise InputError(
        str(name),
        "no such experiment file",
        hint=f"did you mean experiments/{near}.yaml?" if near else f"ready-made ones: {', '.join(sorted(names))}",
    )


def parse(path: Path) -> tuple[dict[str, Any], dict[tuple, int]]:
    """The content of an experiment file, unchecked, and the line of each key. Raises InputError: no YAML."""
    data, node = yaml_text.read(path)
    if not isinstance(node, yaml.MappingNode):
        raise InputError(str(path), "is empty or no mapping; expected keys such as name, topology, links")
    lines: dict[tuple, int] = {}
    _walk(node, (), lines, path)
    return data, lines


def _walk(node: yaml.Node, path: tuple, lines: dict[tuple, int], file: Path) -> None:
    lines[path] = node.start_mark.line + 1
    if len(lines) > MOST_VALUES:
        raise InputError(f"{file} line {lines[path]}", f"has more than {MOST_VALUES} values, its aliases written out")
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen:
                raise InputError(f"{file} line {line}", f"key {name!r} stands twice (first on line {seen[name]})")
            seen[name] = line
            _walk(value, (*path, name), lines, file)
            lines[(*path, name)] = line
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            _walk(value, (*path, i), lines, file)


def _override(data: dict[str, Any], item: str, lines: dict[tuple, int | None]) -> None:
    key, sep, text = item.partition("=")
    if not sep:
        raise InputError(f"--set {item}", "expected key=value, e.g. --set training.steps=5")
    try:
        value, _ = yaml_text.parse(text, f"--set {key}")
    except yaml.YAMLError:
        value = text
    _assign(data, key.strip(), value, lines, f"--set {item}", 0)


def _assign(
    data: dict[str, Any], key: str, value: Any, lines: dict[tuple, int | None], where: str, line: int | None
) -> None:
    """Replace the value at a dotted key. where, line: of the setting that asks for it; line 0: --set."""
    parts = [int(p) if p.isdigit() else p for p in key.split(".")]
    if "" in parts:
        raise InputError(where, f"found the key {key!r}; expected names with dots between them, e.g. training.steps")
    target: Any = data
    for i, part in enumerate(parts[:-1]):
        if isinstance(target, list):
            if not isinstance(part, int) or part >= len(target):
                at = ".".join(map(str, parts[:i]))
                raise InputError(where, f"{at} has {len(target)} items; found {part!r}")
            target = target[part]
        else:
            if target.get(part) is None:
                target[part] = {}
            elif part == "model" and isinstance(target[part], str):
                target[part] = {"name": target[part]}  # a section that may be a name alone
            target = target[part]
        if not isinstance(target, (dict, list)):
            raise InputError(where, f"{'.'.join(map(str, parts[: i + 1]))} is a value, not a section")
    last = parts[-1]
    if isinstance(target, list):
        if not isinstance(last, int) or last >= len(target):
            raise InputError(where, f"has {len(target)} items; found {last!r}")
        target[last] = value
    else:
        target[last] = value
    prefix = tuple(parts)
    for known in [k for k in lines if k[: len(prefix)] == prefix]:
        del lines[known]  # the value is not the file's any more
    lines[prefix] = line


def _where(path: Path, keys: tuple, lines: dict[tuple, int | None]) -> str:
    dotted = ".".join(str(k) for k in keys)
    line = _line(keys, lines)
    if line == 0:
        return f"--set {dotted}"
    place = str(path) if line is None else f"{path} line {line}"
    return f"{place}, {dotted}" if dotted else place


def _line(keys: tuple, lines: dict[tuple, int | None]) -> int | None:
    """Of the key, or of the innermost section around it that stands in the file; 0: comes from --set."""
    return next((lines[keys[:end]] for end in range(len(keys), -1, -1) if lines.get(keys[:end]) is not None), None)


def _explain(error: ValidationError, path: Path, lines: dict[tuple, int]) -> InputError:
    """One line a problem, in the file's order; unions report once."""
    problems: dict[tuple, tuple[str, str | None]] = {}
    for item in error.errors(include_url=False):
        keys = _file_keys(item["loc"])
        message, hint = _message(item, keys)
        problems.setdefault(keys, (message, hint))
    return together([InputError(_where(path, keys, lines), m, hint=h) for keys, (m, h) in problems.items()])


def _file_keys(loc: tuple) -> tuple:
    """A pydantic location without the tags of union members, e.g. ('topology','homes','list[...]',0)."""
    model: Any = Experiment
    keys: list = []
    for part in loc:
        fields = getattr(model, "model_fields", None)
        if fields is not None and part in fields:
            keys.append(part)
            annotation = fields[part].annotation
            model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
        elif isinstance(part, int) or (model is not None and not keys[len(loc) :]) or "[" not in str(part):
            if str(part) in {"int", "str", "float", "bool"}:
                continue
            keys.append(part)
            model = None
    return tuple(keys)


def _message(item: dict, keys: tuple) -> tuple[str, str | None]:
    value = item.get("input")
    shown = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__
    kind = item["type"]
    if kind == "extra_forbidden":
        choices = _choices(keys[:-1])
        near = nearest(str(keys[-1]), choices)
        return (
            f"unknown key {keys[-1]!r}; expected one of: {', '.join(choices)}",
            f"did you mean {near!r}?" if near else None,
        )
    if kind == "missing":
        return f"is missing; expected {_described(keys)}", None
    if kind == "value_error":
        return str(item["ctx"]["error"]), None
    message = item["msg"][0].lower() + item["msg"][1:]
    if kind == "literal_error":
        choices = item["ctx"]["expected"].replace(" or ", ",").split(",")
        near = nearest(str(value), [c.strip().strip("'") for c in choices])
        return f"found {shown}; expected {item['ctx']['expected']}", f"did you mean {near!r}?" if near else None
    return f"found {shown}; expected: {message.removeprefix('input ')}", None


def _model_at(keys: tuple) -> type[BaseModel] | None:
    model: Any = Experiment
    for key in keys:
        if isinstance(key, int):
            continue
        field = getattr(model, "model_fields", {}).get(key)
        if field is None:
            return None
        model = _inner_model(field.annotation)
    return model


def _inner_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for arg in getattr(annotation, "__args__", ()):
        found = _inner_model(arg)
        if found is not None:
            return found
    return None


def _choices(keys: tuple) -> list[str]:
    model = _model_at(keys)
    return list(model.model_fields) if model is not None else []


def _described(keys: tuple) -> str:
    model = _model_at(keys[:-1])
    field = model.model_fields.get(keys[-1]) if model is not None else None
    return field.description if field is not None and field.description else f"a value for {keys[-1]!r}"
