"""The floors of the house (docs/architecture.md): a module imports from its own room and from lower floors, never in a
circle. An import inside a function is an arrow like any other: it only comes later."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Lowest first. Rooms of one floor know nothing of each other, but for the single files at the bottom.
FLOORS = (
    ("errors", "units", "outputs", "processes", "yaml_text", "signals", "plugins", "threads", "shipped"),
    ("uml",),
    ("cluster",),
    ("runtime",),
    ("scenario",),
    ("figures", "capture"),
    ("traces",),
    ("measurement",),
    ("report",),
    ("emulation", "simulation"),
    ("experiment",),
    ("studies",),
    ("verification",),
    ("cli",),
)
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
RUNNERS_MAY = ("cluster", "runtime", "errors", "units")
ENGINES_MAY_NOT = ("report", "traces")
CIRCLES = ("testbed.runtime.local",)  # to be mended: this list only gets shorter


def module_name(path: Path, root: Path = ROOT) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def modules(root: Path = ROOT) -> dict[str, Path]:
    found = (p for package in ("testbed", "runners", "topologies") for p in (root / package).rglob("*.py"))
    return {module_name(p, root): p for p in found}


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The project's modules that a file imports, wherever in it; of `from package import module` the module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for a in node.names:
                whole = f"{node.module}.{a.name}"
                names.add(whole if whole in known else node.module)
    return names & known.keys()


def room(module: str) -> str:
    """`emulation` of testbed.emulation.delay.base; `runners`."""
    package, _, rest = module.partition(".")
    return (rest.partition(".")[0] or "cli") if package == "testbed" else package


def allowed(source: str, target: str) -> bool:
    a, b = room(source), room(target)
    if a == b or target == "testbed":  # its version
        return True
    if a == "runners":
        return b in RUNNERS_MAY
    if a == "topologies":
        return b == "cluster"
    if a == "__main__":
        return b in ("cli", "signals")
    if LEVEL[a] == 0 == LEVEL.get(b):
        return True
    if a in ("emulation", "simulation") and b in ENGINES_MAY_NOT:
        return False
    return LEVEL.get(b, 99) < LEVEL[a]


def arrows(root: Path = ROOT) -> dict[str, set[str]]:
    known = modules(root)
    return {name: imports(path, known) - {name} for name, path in known.items()}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of modules, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_every_room_has_a_floor():
    rooms = {room(m) for m in modules() if m.startswith("testbed.")}
    assert rooms - {"__main__"} == LEVEL.keys()


def test_no_arrow_goes_up():
    wrong = [f"{a} imports {b}" for a, targets in arrows().items() for b in targets if not allowed(a, b)]
    assert not wrong, "\n".join(sorted(wrong))


def test_the_rooms_of_the_emulation_stand_in_no_circle():
    """What lies beside them (engine, shaped network, state, clean-up) counts file by file."""

    def inner(module: str) -> str:
        parts = module.split(".")[2:]
        return parts[0] if len(parts) > 1 or (ROOT / "testbed/emulation" / parts[0]).is_dir() else module

    graph: dict[str, set[str]] = {}
    for source, targets in arrows().items():
        if source.startswith("testbed.emulation."):
            own = graph.setdefault(inner(source), set())
            own |= {inner(t) for t in targets if t.startswith("testbed.emulation.")} - {inner(source)}
    found = circle(graph)
    assert not found, " -> ".join(found)


def test_no_import_circle():
    graph = {name: targets for name, targets in arrows().items() if not name.startswith(CIRCLES)}
    found = circle({name: targets & graph.keys() for name, targets in graph.items()})
    assert not found, " -> ".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "from testbed.emulation import network\n",
        "def f():\n    import testbed.emulation.network\n",
        "if TYPE_CHECKING:\n    from testbed.emulation.network import X\n",
    ],
)
def test_the_check_sees_an_arrow_and_a_circle(tmp_path, text):
    for name, content in {"simulation": text, "emulation/network": "from testbed.simulation import engine\n"}.items():
        path = tmp_path / "testbed" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    graph = arrows(tmp_path)
    assert graph["testbed.simulation"] == {"testbed.emulation.network"}
    assert not allowed("testbed.simulation", "testbed.emulation.network")
    assert circle(graph)


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("testbed.experiment.simulating", ("testbed.emulation", "testbed.report", "testbed.cli", "mininet", "scapy")),
        ("testbed.cli", ("torch", "numpy", "pandas", "testbed.emulation", "testbed.simulation", "testbed.report")),
        ("runners.cleave", ("testbed.emulation", "testbed.simulation", "testbed.experiment")),
    ],
)
def test_what_an_import_loads(module, never):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {module}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    assert module in loaded
    assert not [m for m in loaded if any(m == n or m.startswith(n + ".") for n in never)]
