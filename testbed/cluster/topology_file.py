"""Read a topology from a YAML file (topologies/*.yaml). Strict: errors name line, key, value and expectation.

    name: two-level          # optional: the file's name otherwise
    kind: two-level          # or star
    homes: 6                 # how many (named h1, h2, …), or a list of names
    server: {uplink: 1 Gbit/s, downlink: 1 Gbit/s, rtt: 2 ms}    # these are the defaults
    neighbourhoods:          # of kind two-level; homes that are in none hang on the core directly
      - {name: north, homes: 3, uplink: 50 Mbit/s, downlink: 200 Mbit/s, delay: 2 ms}
      - {name: south, homes: [h4, h5], uplink: 50 Mbit/s, downlink: 200 Mbit/s}

A neighbourhood's `homes` is a list of names, or how many of the homes that are still free, in order. Rates
are TCP goodput; `rtt` is the round trip over the server's own access link, `delay` one-way.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from testbed import units, yaml_text
from testbed.cluster.model import SERVER, Link, SharedLink, Topology
from testbed.errors import InputError, unknown

KINDS = ("star", "two-level")
HOMES_MAX = 100_000  # emulation carries some 1,000 of them
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_RESERVED = (SERVER, "core")  # what the server's node and the core's switch are called
_KEYS = ("name", "kind", "homes", "server", "neighbourhoods")
_SERVER_KEYS = ("uplink", "downlink", "rtt")
_NEIGHBOURHOOD_KEYS = ("name", "homes", "uplink", "downlink", "delay")
_SERVER_DEFAULTS = {"uplink": "1 Gbit/s", "downlink": "1 Gbit/s", "rtt": "2 ms"}


class _Place:
    """A value of the file with the place where it stands."""

    def __init__(self, path: Path, node: yaml.Node, key: str = ""):
        self.path, self.node, self.key = path, node, key

    @property
    def where(self) -> str:
        place = f"{self.path} line {self.node.start_mark.line + 1}"
        return f"{place}, {self.key}" if self.key else place

    @property
    def text(self) -> str:
        """As written, for messages."""
        if isinstance(self.node, yaml.ScalarNode):
            return repr(self.node.value)
        return "a mapping" if isinstance(self.node, yaml.MappingNode) else "a list"

    def error(self, expected: str, hint: str | None = None) -> InputError:
        return InputError(self.where, f"found {self.text}; expected {expected}", hint=hint)

    def mapping(self, keys: tuple[str, ...], required: tuple[str, ...]) -> dict[str, _Place]:
        """The values by key. Raises InputError: no mapping; a key that is unknown, double or missing."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error(f"a mapping with {', '.join(required)}")
        found: dict[str, _Place] = {}
        for key_node, value in self.node.value:
            place = _Place(self.path, key_node, self.key)
            if key_node.value not in keys:
                raise unknown(place.where, "key", key_node.value, keys)
            if key_node.value in found:
                raise InputError(place.where, f"key {key_node.value!r} is there twice; expected once")
            found[key_node.value] = _Place(self.path, value, f"{self.key}.{key_node.value}".lstrip("."))
        for key in required:
            if key not in found:
                beside = ", ".join(found) or "nothing"
                raise InputError(self.where, f"no {key!r}; expected it beside {beside}")
        return found

    def items(self) -> list[_Place]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error("a list")
        return [_Place(self.path, item, f"{self.key}[{i}]") for i, item in enumerate(self.node.value)]

    def scalar(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error("one value")
        return self.node.value

    def quantity(self, kind: str, *, positive: bool) -> float:
        """In SI units; see testbed.units."""
        text = self.scalar()
        try:
            value = units.parse(kind, text)
        except ValueError as error:
            raise InputError(self.where, str(error)) from None
        if value < 0 or (positive and value == 0):
            raise self.error("more than 0" if positive else "0 or more")
        return value

    def name(self) -> str:
        text = self.scalar()
        if not _NAME.fullmatch(text):
            raise self.error("a letter, then up to 39 letters, digits, '-' and '_'")
        if text in _RESERVED:
            raise self.error(f"another name ({', '.join(_RESERVED)} are taken)")
        return text

    def count(self) -> int | None:
        """A whole number, or None when the value isn't one."""
        is_int = isinstance(self.node, yaml.ScalarNode) and self.node.tag == "tag:yaml.org,2002:int"
        return int(self.node.value.replace("_", ""), 0) if is_int else None


def load_topology(path: str | Path) -> Topology:
    """Read a topology file.

    Raises:
        InputError: the file can't be read, isn't YAML, or holds something that can't be.
    """
    path = Path(path)
    _, node = yaml_text.read(path)
    if node is None:
        raise InputError(str(path), "is empty; expected kind and homes")
    keys = _Place(path, node).mapping(_KEYS, ("kind", "homes"))
    kind = keys["kind"].scalar()
    if kind not in KINDS:
        raise unknown(keys["kind"].where, "kind", kind, KINDS)
    homes = _homes(keys["homes"])
    if kind == "star" and "neighbourhoods" in keys:
        raise InputError(keys["neighbourhoods"].where, "found them in a star; expected kind: two-level")
    if kind == "two-level" and "neighbourhoods" not in keys:
        raise InputError(f"{path}", "no 'neighbourhoods'; expected them with kind: two-level")
    return Topology(
        homes=homes,
        server_link=_server(keys.get("server")),
        shared_links=_neighbourhoods(keys["neighbourhoods"], homes) if kind == "two-level" else (),
        name=keys["name"].scalar() if "name" in keys else path.stem,
    )


def _homes(place: _Place) -> tuple[str, ...]:
    count = place.count()
    if count is not None:
        if not 1 <= count <= HOMES_MAX:
            raise place.error(f"1 to {HOMES_MAX} homes")
        return tuple(f"h{i}" for i in range(1, count + 1))
    if not isinstance(place.node, yaml.SequenceNode):
        raise place.error("how many homes, or a list of names")
    names: list[str] = []
    for item in place.items():
        name = item.name()
        if name in names:
            raise InputError(item.where, f"home {name!r} is there twice; expected once")
        names.append(name)
    if not 1 <= len(names) <= HOMES_MAX:
        raise InputError(place.where, f"found {len(names)} homes; expected 1 to {HOMES_MAX}")
    return tuple(names)


def _server(place: _Place | None) -> Link:
    keys = place.mapping(_SERVER_KEYS, ()) if place else {}

    def value(key: str, kind: str, positive: bool) -> float:
        if key in keys:
            return keys[key].quantity(kind, positive=positive)
        return units.parse(kind, _SERVER_DEFAULTS[key])

    rtt_s = value("rtt", "duration", False)
    return Link(value("uplink", "rate", True), value("downlink", "rate", True), rtt_s / 2, rtt_s / 2)


def _neighbourhoods(place: _Place, homes: tuple[str, ...]) -> tuple[SharedLink, ...]:
    links: list[SharedLink] = []
    taken: dict[str, str] = {}  # home -> neighbourhood
    for item in place.items():
        keys = item.mapping(_NEIGHBOURHOOD_KEYS, ("name", "homes", "uplink", "downlink"))
        name = keys["name"].name()
        if name in homes or name in (link.name for link in links):
            raise keys["name"].error("a name that no home and no other neighbourhood has")
        members = _members(keys["homes"], homes, taken)
        taken.update(dict.fromkeys(members, name))
        links.append(
            SharedLink(
                name=name,
                members=members,
                uplink_bps=keys["uplink"].quantity("rate", positive=True),
                downlink_bps=keys["downlink"].quantity("rate", positive=True),
                delay_s=keys["delay"].quantity("duration", positive=False) if "delay" in keys else 0.0,
            )
        )
    if not links:
        raise InputError(place.where, "no neighbourhood; expected one at least with kind: two-level")
    return tuple(links)


def _members(place: _Place, homes: tuple[str, ...], taken: dict[str, str]) -> tuple[str, ...]:
    free = [home for home in homes if home not in taken]
    count = place.count()
    if count is not None:
        if not 1 <= count <= len(free):
            raise place.error(f"1 to {len(free)}, the homes that are in no neighbourhood yet")
        return tuple(free[:count])
    if not isinstance(place.node, yaml.SequenceNode):
        raise place.error("how many homes, or a list of names")
    members: list[str] = []
    for item in place.items():
        home = item.scalar()
        if home not in homes:
            raise unknown(item.where, "home", home, homes)
        if home in taken or home in members:
            other = taken.get(home, "this one")
            raise InputError(item.where, f"home {home!r} is in neighbourhood {other!r} already; expected one")
        members.append(home)
    if not members:
        raise InputError(place.where, "found no home; expected one at least")
    return tuple(members)
