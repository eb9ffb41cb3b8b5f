"""A shaped network without training, for shells and single programs; and finding one that is up already."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.cluster import LinkState
from testbed.emulation import cleanup
from testbed.emulation.shaped import HOSTS_FILE, ShapedNetwork, live_folder
from testbed.emulation.state import STATE_DIR, RunState, process_value
from testbed.errors import InputError
from testbed.experiment.loading import LoadedExperiment, find_experiment
from testbed.experiment.machine import capable, check_kernel
from testbed.experiment.setup import network_setup
from testbed.signals import interruptible


@dataclass(frozen=True)
class LiveHost:
    """A host of a running network, as another process sees it (what programs.run_program needs)."""

    name: str
    netns: str
    netns_path: str
    interface: str
    ip: str


@dataclass(frozen=True)
class LiveNetwork:
    """A network that another process keeps up; `label` is its experiment's file."""

    run_id: str
    label: str
    run_dir: Path | None
    hosts: dict[str, LiveHost]

    def current(self, home: str) -> LinkState:
        """The home's settings now in force."""
        return LinkState(**json.loads((live_folder(self.run_id) / f"{home}.link").read_text()))


@contextmanager
def shaped_session(
    loaded: LoadedExperiment, *, command: str, at_s: float = 0.0, hold: bool = False, warnings: list[str] | None = None
) -> Iterator[tuple[RunState, ShapedNetwork]]:
    """The experiment's network with its links replayed, from emulated time `at_s` on; removed at the end.

    hold: keep the links as they are at `at_s`, without cross traffic. A signal raises Interrupted inside the context.
    """
    caps = capable()
    check_kernel(loaded, caps)
    setup = network_setup(loaded, warnings if warnings is not None else []).later(at_s)
    if hold:
        setup = setup.held()
    with interruptible():
        state = RunState.create(None, command=command)
        try:
            with ShapedNetwork(state, setup, caps=caps) as shaped:
                if not hold:
                    shaped.begin(time.monotonic())
                yield state, shaped
        finally:
            cleanup.teardown(state)


def live_networks() -> list[LiveNetwork]:
    """Networks whose owner is alive."""
    found = []
    for path in STATE_DIR.glob(f"*.live/{HOSTS_FILE}"):
        run_id = path.parent.name.removesuffix(".live")
        try:
            state = RunState.load(STATE_DIR / f"{run_id}.json")
            if process_value(int(state.owner.partition(":")[0])) != state.owner:
                continue
            data = json.loads(path.read_text())
        except (OSError, ValueError):  # it ended while we looked
            continue
        hosts = {name: LiveHost(name, **h) for name, h in data["hosts"].items()}
        found.append(LiveNetwork(run_id, data["label"], state.run_dir, hosts))
    return found


def find_live(name: str) -> LiveNetwork | None:
    """The live network meant by a run id, a run folder, or an experiment (file or ready-made name), if there is one.

    Raises:
        InputError: several live networks answer to that name.
    """
    live = live_networks()
    path = Path(name).expanduser()
    exact = [
        n
        for n in live
        if n.run_id == name or (n.run_dir is not None and path.is_dir() and path.resolve() == n.run_dir.resolve())
    ]
    if not exact:
        try:
            label = str(find_experiment(name))
        except InputError:
            return None
        exact = [n for n in live if n.label == label]
    if len(exact) > 1:
        raise InputError(
            name,
            f"{len(exact)} networks of it are up: {', '.join(n.run_id for n in exact)}",
            hint="name one of them by that id, or use --new for a network of your own",
        )
    return exact[0] if exact else None
