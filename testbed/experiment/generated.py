"""What an experiment file asks to be made from public figures: links, availability and devices, by its seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.cluster.devices import DeviceProfile
from testbed.cluster.populations import draw, load_populations
from testbed.errors import unknown
from testbed.experiment.loading import LoadedExperiment
from testbed.traces.availability import Availability
from testbed.traces.generate_availability import DAY_S, generate_availability
from testbed.traces.generate_links import generate_links, mixed
from testbed.traces.links import LinkTrace
from testbed.traces.presets import AVAILABILITY, LINKS

LINK_STEP_S = 900.0  # sampling of generated links
LONGEST_DAYS = 7  # of generated availability; a longer experiment repeats it, where `end` says so


def _seed(loaded: LoadedExperiment) -> int:
    return loaded.experiment.seed % 2**32


def generated_links(loaded: LoadedExperiment, homes: int, preset: str | None = None) -> Mapping[str, LinkTrace]:
    """Links of a preset, `links.preset` by default: one a home, as long as the experiment, but a day at most.

    Raises:
        InputError: no such preset.
    """
    e, name = loaded.experiment, preset or loaded.experiment.links.preset
    if name != "mixed" and name not in LINKS:
        raise unknown(loaded.where("links", "preset"), "link preset", name, [*LINKS, "mixed"])
    needed_s = e.links.start + e.time_limit * e.time_scale
    return generate_links(
        mixed(homes) if name == "mixed" else {name: homes}, seed=_seed(loaded),
        duration_s=min(DAY_S, LINK_STEP_S * (1 + needed_s // LINK_STEP_S)), step_s=LINK_STEP_S,
    )  # fmt: skip


def generated_availability(loaded: LoadedExperiment, devices: int) -> Mapping[str, Availability]:
    """Availability of `availability.preset`, one series a device, over whole days. Raises InputError."""
    e, name = loaded.experiment, loaded.experiment.availability.preset
    if name not in AVAILABILITY:
        raise unknown(loaded.where("availability", "preset"), "availability preset", name, AVAILABILITY)
    needed_s = e.availability.start + e.time_limit * e.time_scale
    return generate_availability(name, devices, seed=_seed(loaded), days=min(LONGEST_DAYS, 1 + int(needed_s // DAY_S)))


def drawn_devices(
    loaded: LoadedExperiment, profiles: Mapping[str, DeviceProfile], homes: Sequence[str]
) -> dict[str, DeviceProfile]:
    """A device of `devices.population` for each home. Raises InputError."""
    name, known = loaded.experiment.devices.population, load_populations()
    where = loaded.where("devices", "population")
    if name not in known:
        raise unknown(where, "device population", name, known)
    return dict(zip(homes, draw(known[name], len(homes), loaded.experiment.seed, profiles, where)))
