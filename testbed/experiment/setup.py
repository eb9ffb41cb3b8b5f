"""From a validated experiment to everything that a run needs: topology, cluster, traces in time, plan.

All input is read and checked here, before anything starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from testbed.cluster import Cluster, Device, Link, LinkState, OptimizerSpec, SharedLink, Topology, TrainingSpec
from testbed.cluster.devices import DeviceProfile, load_profiles
from testbed.cluster.model import SERVER
from testbed.cluster.topology_file import load_topology
from testbed.errors import InputError, nearest, unknown
from testbed.experiment import link_series
from testbed.experiment.cross_traffic import overload_warnings, read_cross_traffic
from testbed.experiment.generated import drawn_devices, generated_availability, generated_links
from testbed.experiment.loading import LoadedExperiment, in_entry, sweep_points
from testbed.experiment.schema import NeighbourhoodSection, TopologySection, TrainingSection
from testbed.measurement.thresholds import Thresholds
from testbed.runtime import Runner
from testbed.runtime.registry import load_runner
from testbed.scenario.captures import CaptureSettings
from testbed.scenario.link_model import access_link
from testbed.scenario.network import NetworkSettings, NetworkSetup
from testbed.scenario.run import Scenario
from testbed.traces.assign import assign
from testbed.traces.links import LinkTrace
from testbed.traces.reading import read_availability
from testbed.traces.report import Report

LONGEST_DELAY_S = 300.0


@dataclass(frozen=True, kw_only=True)
class RunSetup(Scenario):
    """A scenario, with the experiment that it was made from.

    facts: what the engine's manifest says beside what every run's does; of an emulation, once the machine was held
    against it.
    """

    loaded: LoadedExperiment
    engine: str = "emulation"
    facts: dict[str, Any] = field(default_factory=dict)


def network_setup(loaded: LoadedExperiment, warnings: list[str]) -> NetworkSetup:
    """Topology and link settings over time, of the experiment as it stands without its sweep. Raises InputError."""
    if entries := loaded.experiment.sweep:
        warnings.append(
            f"{loaded.where('sweep')}: this is the experiment without its sweep of {len(entries)} runs; an "
            "entry's settings can be given by --set"
        )
    topology = _topology(loaded)
    changes, sources = _link_changes(loaded, topology, warnings)
    _check_delays(loaded, topology, changes)
    streams = read_cross_traffic(loaded, topology.homes)
    warnings += overload_warnings(streams, changes)
    from testbed.emulation.delay import registry  # names alone: a simulation loads no backend

    with loaded.placing("network", "links"):
        settings = NetworkSettings.of(loaded.experiment)
        registry.check(settings.delay_backend, settings.switch)
    return NetworkSetup(topology, changes, settings, sources, tuple(streams), loaded.experiment.seed, str(loaded.path))


def thresholds(loaded: LoadedExperiment) -> Thresholds:
    """Those of the experiment. Raises InputError."""

    def where(*name: str) -> str:
        short = ("fidelity", *name)  # written without the word `thresholds`
        return loaded.where(*(short if short in loaded.lines else ("fidelity", "thresholds", *name)))

    return Thresholds.from_mapping(loaded.experiment.fidelity.thresholds, where)


def run_setup(loaded: LoadedExperiment) -> RunSetup:
    """Read, check and plan everything. Raises InputError for whatever can't work."""
    warnings: list[str] = []
    experiment = loaded.experiment
    training = experiment.training
    runner = load_runner(training.runner, where=loaded.where("training", "runner"))()
    _check_options(loaded, runner)
    if experiment.engine == "emulation":
        from testbed.experiment.machine import check_congestion_control  # a simulation needs none of it

        check_congestion_control(loaded)
    thresholds(loaded)
    network = network_setup(loaded, warnings)
    churn, absent, fractions = _churn(loaded, network.topology.homes, warnings)
    cluster = _cluster(loaded, network, fractions)
    model = experiment.model.spec
    o = training.optimizer
    spec = TrainingSpec(
        training.runner,
        training.batch,
        training.micro_batches,
        training.steps,
        experiment.seed if training.seed is None else training.seed,
        OptimizerSpec(o.name, o.lr, tuple(o.betas), o.weight_decay, o.eps),
        training.options,
    )
    present = cluster.only(d.name for d in cluster.devices if d.name not in absent)
    if not present.devices:
        raise InputError(
            loaded.where("availability"),
            "no device is available at the start; expected at least one",
            hint="choose another availability.start or trace",
        )
    with loaded.placing("model", "training"):
        plan = runner.plan(present, model, spec)
    return RunSetup(
        network=network,
        cluster=cluster,
        runner=runner,
        plan=plan,
        churn=churn,
        churn_mode=experiment.availability.churn,
        absent_at_start=frozenset(absent),
        time_limit_s=experiment.time_limit,
        probe_s=experiment.probes.seconds if experiment.probes.enabled else None,
        captures=captures_of(loaded, network.topology.homes),
        tensors=experiment.simulation.tensors,
        details=experiment.simulation.details,
        warnings=warnings,
        loaded=loaded,
        engine=experiment.engine,
    )


def captures_of(loaded: LoadedExperiment, homes: Sequence[str]) -> CaptureSettings | None:
    """What an experiment's `captures` asks for, None for nothing. Raises InputError: a host that there is not."""
    section = loaded.experiment.captures
    hosts = [*homes, SERVER]
    chosen = hosts if section.homes == "all" else list(dict.fromkeys(section.homes))
    for name in chosen:
        if name not in hosts:
            raise unknown(loaded.where("captures", "homes"), "host", name, hosts)
    if not chosen:
        return None
    start = getattr(section, "from")
    return CaptureSettings(
        tuple(chosen),
        int(section.snaplen),
        start if isinstance(start, float) else None,
        None if start is None or isinstance(start, float) else start.step,
        getattr(section, "for"),
        int(section.most),
    )


def run_setups(loaded: LoadedExperiment, last: Sequence[str] = ()) -> list[RunSetup]:
    """The setup of each run that it asks for: of its sweep's entries, or the one there is without a sweep.

    Raises InputError before any of them can start. last: as of `sweep_points`.
    """
    if not loaded.experiment.sweep:
        return [run_setup(loaded)]
    setups = []
    for i, point in enumerate(sweep_points(loaded, last)):
        with in_entry(i):
            setups.append(run_setup(point))
    return setups


def _check_delays(loaded: LoadedExperiment, topology: Topology, changes) -> None:
    """A delay line holds packets for minutes at most, in real time."""
    tdf = loaded.experiment.tdf
    longest = max(
        [
            topology.server_link.uplink_delay_s,
            *(s.delay_s for s in topology.shared_links),
            *(s.rtt_s + s.jitter_s for series in changes.values() for _, s in series),
        ]
    )
    if longest * tdf > LONGEST_DELAY_S:
        raise InputError(
            loaded.where("tdf"),
            f"the longest delay, {longest:g} s, is {longest * tdf:g} s in real time "
            f"at tdf {tdf:g}; expected at most {LONGEST_DELAY_S:g} s",
        )


def _check_options(loaded: LoadedExperiment, runner: Runner) -> None:
    """The keys of `training` that the schema does not know are the runner's: let it check them."""
    check = getattr(runner, "check_options", None)
    options = loaded.experiment.training.options
    if check is None:
        return
    try:
        check(options)
    except InputError as error:
        key = error.where.removeprefix("training.").removeprefix("options.")
        hint = error.hint
        near = nearest(key, TrainingSection.model_fields)
        if near and SequenceMatcher(None, key, near).ratio() > 0.8:  # a slip in one of the schema's own keys
            hint = f"did you mean {near!r}?"
        raise InputError(loaded.where("training", key), error.problem, hint=hint) from None


def _topology(loaded: LoadedExperiment) -> Topology:
    section = loaded.experiment.topology
    if section.file is not None:
        topology = load_topology(loaded.file(section.file, "topology", "file"))
        return _resized(topology, section, loaded)
    homes = _home_names(section.homes)
    half = section.server.rtt / 2
    server = Link(section.server.uplink, section.server.downlink, half, half)
    shared, taken = [], {}
    free = list(homes)
    for i, n in enumerate(section.neighbourhoods):
        members = _members(n, homes, free, loaded.where("topology", "neighbourhoods", i, "homes"), taken)
        shared.append(SharedLink(n.name, members, n.uplink, n.downlink, n.delay))
    return Topology(homes, server, tuple(shared), name="two-level" if shared else "star")


def _resized(topology: Topology, section: TopologySection, loaded: LoadedExperiment) -> Topology:
    """A topology file with `homes` beside it keeps the file's first homes."""
    if section.homes is None:
        return topology
    if not isinstance(section.homes, int) or section.homes > len(topology.homes):
        raise InputError(
            loaded.where("topology", "homes"),
            f"found {section.homes}; with file, expected a number up to the file's {len(topology.homes)}",
        )
    homes = topology.homes[: section.homes]
    shared = tuple(
        SharedLink(s.name, tuple(m for m in s.members if m in homes), s.uplink_bps, s.downlink_bps, s.delay_s)
        for s in topology.shared_links
    )
    return Topology(homes, topology.server_link, tuple(s for s in shared if s.members), topology.name)


def _home_names(homes: int | list[str] | None) -> tuple[str, ...]:
    return tuple(f"h{i + 1}" for i in range(homes)) if isinstance(homes, int) else tuple(homes or ())


def _members(
    n: NeighbourhoodSection, homes: tuple[str, ...], free: list[str], where: str, taken: dict[str, str]
) -> tuple[str, ...]:
    if isinstance(n.homes, int):
        if n.homes < 1 or n.homes > len(free):
            raise InputError(where, f"{n.name} wants {n.homes} homes; {len(free)} are left of {len(homes)}")
        members = tuple(free[: n.homes])
    else:
        members = tuple(n.homes)
        for m in members:
            if m not in homes:
                raise unknown(where, "home", m, homes)
            if m in taken:
                raise InputError(where, f"home {m!r} is in {taken[m]!r} already; a home has one neighbourhood")
    for m in members:
        taken[m] = n.name
        free.remove(m)
    return members


def _link_changes(loaded: LoadedExperiment, topology: Topology, warnings: list[str]):
    e, section = loaded.experiment, loaded.experiment.links
    homes = topology.homes
    if section.trace is None and section.preset is None:
        state = LinkState(section.download, section.upload, section.rtt, section.jitter or 0.0, section.loss or 0.0)
        return {h: [(0.0, state)] for h in homes}, {h: "constant" for h in homes}
    if section.trace is None:
        source, population = f"preset {section.preset}", generated_links(loaded, len(homes))
        named = assign(homes, list(population), "random", seed=e.seed)
    else:
        source, population = link_series.read_population(
            loaded, section, ("links",), warnings, link_series.defaults(section)
        )
        link_series.check_constants(loaded, source, population)
        named = assign(
            homes,
            list(population),
            section.assign,
            seed=e.seed,
            mapping=section.mapping,
            where=loaded.where("links", "assign"),
        )
    second = link_series.second_sources(loaded, homes, {h: population[named[h]] for h in homes}, warnings)
    changes, sources = {}, {}
    offsets = _offsets(loaded, named, population)
    for home in homes:
        trace = population[named[home]]
        if section.end == "stop":
            _check_long_enough(loaded, "links", trace.span_s, offsets[home], named[home])

        def played(one: LinkTrace, offset_s: float) -> list[tuple[float, LinkState]]:
            return one.changes(
                e.time_limit,
                offset_s=offset_s,
                time_scale=e.time_scale,
                end=section.end,
                interpolate=section.interpolate,
                resolution_s=max(section.resolution / e.tdf, 1e-3),
            )

        series = played(trace, offsets[home])
        for quantities, other, _ in second[home]:
            series = link_series.merged(series, played(other, section.start % other.span_s), quantities)
        series = _thinned(series, section.resolution / e.tdf)
        if section.jitter is not None or section.loss is not None:
            series = [
                (
                    t,
                    LinkState(
                        s.down_bps,
                        s.up_bps,
                        s.rtt_s,
                        s.jitter_s if section.jitter is None else section.jitter,
                        s.loss if section.loss is None else section.loss,
                    ),
                )
                for t, s in series
            ]
        changes[home] = series
        own = f"{source}: {named[home]}" + (f" from {offsets[home]:.0f} s" if offsets[home] else "")
        sources[home] = link_series.described(section, trace, own, second[home])
    _warn_short_rtt(changes, topology, warnings)
    return changes, sources


def _options(section) -> dict:
    """`read:` as the trace readers take it: lists as tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in section.read.items()}


def _read(loaded: LoadedExperiment, section: str, read):
    try:
        return read()
    except InputError as error:
        if error.where.startswith("options"):
            raise InputError(loaded.where(section, "read"), error.problem, hint=error.hint) from None
        raise


def _offsets(loaded: LoadedExperiment, named: dict[str, str], population) -> dict[str, float]:
    """Where in its series each home starts; with `stagger`, homes of one series are spread evenly over it."""
    section = loaded.experiment.links
    start = {home: section.start for home in named}
    if not section.stagger:
        return start
    for series in set(named.values()):
        sharing = [h for h in named if named[h] == series]
        for k, home in enumerate(sharing):
            start[home] += k * population[series].span_s / len(sharing)
    return start


def _check_long_enough(loaded: LoadedExperiment, section: str, span_s: float, start_s: float, name: str) -> None:
    if start_s >= span_s:
        raise InputError(
            loaded.where(section, "start"),
            f"{start_s:g} s lies beyond the end of {name!r} ({span_s:g} s), and end is 'stop'",
        )


def _thinned(series: list[tuple[float, LinkState]], resolution_s: float) -> list[tuple[float, LinkState]]:
    """At most one change in each `resolution_s`: the last one of it."""
    out: list[tuple[float, LinkState]] = []
    for t, state in series:
        if len(out) > 1 and t - out[-1][0] < resolution_s:
            out[-1] = (out[-1][0], state)
        else:
            out.append((t, state))
    return out


def _warn_short_rtt(changes, topology: Topology, warnings: list[str]) -> None:
    server_rtt = topology.server_link.uplink_delay_s + topology.server_link.downlink_delay_s
    behind = {m: 2 * s.delay_s for s in topology.shared_links for m in s.members}
    for home, series in changes.items():
        fixed = server_rtt + behind.get(home, 0.0)
        short = [s.rtt_s for _, s in series if s.rtt_s < fixed]
        if short:
            warnings.append(
                f"{home}: {len(short)} of {len(series)} trace RTTs are below the {fixed * 1e3:.1f} ms of "
                "the server's and shared links; the emulated RTT is that much longer there"
            )


def _churn(loaded: LoadedExperiment, homes: tuple[str, ...], warnings: list[str]):
    e, section = loaded.experiment, loaded.experiment.availability
    events: list[tuple[float, str, str]] = []
    absent: set[str] = set()
    fractions = dict.fromkeys(homes, 1.0)
    if section.trace is None and section.preset is None:
        return events, absent, fractions
    where = loaded.where("availability", "assign")
    names, method = homes, section.assign
    if section.preset is not None:
        population, method = generated_availability(loaded, len(homes)), "one-to-one"
    else:
        path = loaded.file(section.trace, "availability", "trace", folders=True)
        report = Report()
        population = _read(
            loaded,
            "availability",
            lambda: read_availability(path, format=section.format, report=report, **_options(section)),
        )
        warnings += link_series.told(path.name, section.trace, report)
    if method == "by-name":
        for name in section.mapping:
            if name not in homes:
                raise unknown(loaded.where("availability", "mapping"), "device", name, homes)
        names = tuple(h for h in homes if h in section.mapping or h in population)
        if not names:
            raise InputError(
                where,
                f"none of the devices {', '.join(homes[:8])} is in {path.name} "
                f"(it has {', '.join(list(population)[:8])})",
                hint="use assign: round-robin, or mapping",
            )
        always = [h for h in homes if h not in names]
        if always:
            warnings.append(f"always available, not being in {path.name}: {', '.join(always)}")
    named = assign(names, list(population), method, seed=e.seed, mapping=section.mapping, where=where)
    for device in names:
        trace = population[named[device]]
        if section.end == "stop":
            _check_long_enough(loaded, "availability", trace.span_s, section.start, named[device])
        changes = trace.changes(e.time_limit, offset_s=section.start, time_scale=e.time_scale, end=section.end)
        if not changes[0][1]:
            absent.add(device)
        events += [(t, device, "return" if on else "leave") for t, on in changes[1:]]
        on_s, state, last = 0.0, changes[0][1], 0.0
        for t, on in [*changes[1:], (e.time_limit, False)]:
            on_s += (t - last) if state else 0.0
            state, last = on, t
        fractions[device] = on_s / e.time_limit
    return sorted(events), absent, fractions


def _cluster(loaded: LoadedExperiment, network: NetworkSetup, fractions: dict[str, float]) -> Cluster:
    section = loaded.experiment.devices
    shipped = load_profiles()
    own = {n: DeviceProfile(n, d.speed, int(d.memory), d.power, "this experiment") for n, d in section.define.items()}
    profiles = {**shipped, **own}
    for i, name in enumerate(section.profiles):
        if name not in profiles:
            raise unknown(loaded.where("devices", "profiles", i), "device profile", name, profiles)
    homes = network.topology.homes
    for home, name in section.mapping.items():
        where = loaded.where("devices", "mapping", home)
        if home not in homes:
            raise unknown(where, "home", home, homes)
        if name not in profiles:
            raise unknown(where, "device profile", name, profiles)
    if section.count is not None and section.count != len(homes):
        raise InputError(
            loaded.where("devices", "count"),
            f"{section.count} devices for {len(homes)} homes; a home has one",
            hint="leave out the topology's homes, or devices.count",
        )
    if section.population is not None:
        devices = drawn_devices(loaded, profiles, homes)
    else:
        chosen = assign(homes, section.profiles, section.assign, seed=loaded.experiment.seed)
        devices = {home: profiles[chosen[home]] for home in homes}
    devices.update({home: profiles[name] for home, name in section.mapping.items()})
    topology = network.topology
    behind = {m: s.delay_s for s in topology.shared_links for m in s.members}

    def device(home: str) -> Device:
        p = devices[home]
        link = access_link(network.link_changes[home][0][1], topology.server_link, behind.get(home, 0.0)).link
        return Device(home, p.flops * section.speed_factor, p.memory_bytes, link, p.name, fractions[home], p.power_w)

    server = loaded.experiment.topology.server
    return Cluster(
        Device(SERVER, server.speed, int(server.memory), topology.server_link, "server"),
        tuple(device(h) for h in homes),
        topology.shared_links,
    )
