"""Delay backends by name: the project's own, and those of installed packages (entry points `testbed.delay_backends`).

A backend is loaded only when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed import plugins
from testbed.errors import InputError, TestbedError, unknown

if TYPE_CHECKING:
    from testbed.emulation.delay.base import DelayBackend

GROUP = "testbed.delay_backends"
OWN = {
    "netem": "testbed.emulation.delay.netem:NetemBackend",
    "nfqueue": "testbed.emulation.delay.nfqueue:NfqueueBackend",
}
WHERE = "network.delay_backend"


def load(name: str, where: str = WHERE) -> type[DelayBackend]:
    """The backend's class. Raises InputError: no such backend; TestbedError: it does not load."""
    if name not in OWN and name not in (known := plugins.names(GROUP)):
        raise unknown(where, "delay backend", name, ("auto", *OWN, *known))
    found: type[DelayBackend] = plugins.load(GROUP, "delay backend", OWN.get(name, name), where)
    if not hasattr(found, "declares"):
        raise TestbedError(f"delay backend {name!r} does not say what it `declares` (docs/delay.md)")
    return found


def backends() -> tuple[dict[str, type[DelayBackend]], dict[str, str]]:
    """(all that load, in the order in which `auto` tries them; and what the others say instead)."""
    loaded, broken = {}, {}
    for name in dict.fromkeys([*OWN, *plugins.names(GROUP)]):
        try:
            loaded[name] = load(name)
        except TestbedError as error:
            broken[name] = str(error)
    return dict(sorted(loaded.items(), key=lambda item: item[1].declares.place())), broken


def check(name: str, switch: str) -> None:
    """Whether there is such a backend, and it works behind this switch. Raises InputError."""
    if name == "auto" or (name in OWN and switch == "bridge"):  # all do
        return
    if switch not in load(name).declares.switches:
        others = [n for n, b in backends()[0].items() if switch in b.declares.switches]
        raise InputError(
            "network.switch",
            f"{switch!r} with delay backend {name!r}, which works with {', '.join(load(name).declares.switches)}; "
            f"expected that, or delay_backend: {' or '.join(others) or 'another'}",
        )
