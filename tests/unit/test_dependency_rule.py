"""The dependency rule of docs/decisions.md: runners know no engine, engines no runner, reports only run folders."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FORBIDDEN = {
    "runners": (
        "testbed.emulation",
        "testbed.simulation",
        "testbed.experiment",
        "testbed.cli",
        "testbed.report",
        "testbed.measurement",
        "testbed.traces",
    ),
    "testbed/emulation": ("testbed.simulation", "runners", "testbed.cli"),
    "testbed/simulation": ("testbed.emulation", "runners", "testbed.cli"),
    "testbed/report": ("testbed.emulation", "testbed.simulation", "runners", "testbed.experiment", "testbed.cli"),
    "testbed/runtime": ("testbed.emulation", "testbed.simulation", "testbed.experiment", "runners", "testbed.cli"),
    "testbed/cluster": ("testbed.emulation", "testbed.simulation", "testbed.runtime", "runners", "testbed.cli"),
    "testbed/traces": ("testbed.emulation", "testbed.simulation", "testbed.runtime", "runners", "testbed.cli"),
}


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return names


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_folder_imports_nothing_forbidden(folder):
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imports(path)
        if any(name == f or name.startswith(f + ".") for f in FORBIDDEN[folder])
    ]
    assert not wrong, "\n".join(wrong)


def test_the_check_sees_a_forbidden_import(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("from testbed.emulation import network\n")
    assert "testbed.emulation" in imports(path)
