"""The experiment file: one pydantic model a section, strict (unknown keys are errors). See docs/experiment.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    create_model,
    field_validator,
    model_validator,
)

from testbed.cluster import ModelSpec
from testbed.cluster.published import PUBLISHED, published
from testbed.cluster.topology_file import HOMES_MAX
from testbed.errors import InputError
from testbed.experiment.quantities import Delay, Duration, PositiveDuration, Rate, Size, Speed, TimeDilation, si

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=40)]
Assign = Literal["round-robin", "random", "one-to-one", "by-name"]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True, arbitrary_types_allowed=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        of = cls.model_fields[info.field_name].annotation
        entries = (
            value.items()
            if get_origin(of) is dict and isinstance(value, dict)
            else enumerate(value)
            if get_origin(of) is tuple and isinstance(value, list)
            else [("", value)]
        )
        for key, entry in entries:
            if isinstance(entry, bool) and of is not bool:
                raise ValueError(
                    f"found {f'{key}: ' * (entry is not value)}{entry}; expected neither true nor false "
                    "(YAML makes them of yes, on, no, off)"
                )
        return value


class ServerSection(Section):
    """The well-connected host. Its link is emulated like any other, and its traffic is reported."""

    uplink: Rate = Field(si(1e9), description="server to core: what the server can send")
    downlink: Rate = Field(si(1e9), description="core to server: what it can receive")
    rtt: Delay = Field(si(0.002), description="round trip over the server's own link; part of a trace's RTT")
    speed: Speed = Field(si(50e9), description="of the server's own computations")
    memory: Size = Field(si(16e9))


class NeighbourhoodSection(Section):
    """Homes that share one uplink and one downlink on the way to the core."""

    name: Name
    homes: int | list[Name] = Field(description="how many of the homes, in order, or which")
    uplink: Rate
    downlink: Rate
    delay: Delay = Field(si(0.0), description="one-way delay of the shared link")


class TopologySection(Section):
    """Either a file of topologies/, or homes, server and neighbourhoods here."""

    file: str | None = Field(None, description="a YAML topology, e.g. topologies/star.yaml")
    homes: int | list[Name] | None = Field(None, description="how many (named h1, h2, …), or their names")
    server: ServerSection = Field(default_factory=ServerSection)
    neighbourhoods: list[NeighbourhoodSection] = Field(default_factory=list)

    @field_validator("homes")
    @classmethod
    def _some_homes(cls, homes: int | list[str] | None) -> int | list[str] | None:
        count = homes if isinstance(homes, int) else len(homes) if homes is not None else 1
        if not 1 <= count <= HOMES_MAX:
            raise ValueError(f"{count} homes; expected 1 to {HOMES_MAX}")
        if isinstance(homes, list):
            if len(set(homes)) != len(homes):
                raise ValueError(f"{homes} names a home twice")
            if "server" in homes:
                raise ValueError("'server' is the server's name; give the home another")
        return homes

    @model_validator(mode="after")
    def _one_source(self) -> TopologySection:
        if self.file is not None and self.neighbourhoods:
            raise ValueError("either file, or homes with neighbourhoods, not both")
        if self.file is None and self.homes is None:
            raise ValueError("says neither homes nor file; expected e.g. 'homes: 6'")
        return self


class DelaysSection(Section):
    """RTT, jitter and loss from a source of their own; what it does not have stays as it is."""

    trace: str | None = Field(None, description="a trace or a log of round trips (ping, fping, RIPE Atlas …)")
    preset: str | None = Field(None, description="as links.preset")
    format: str | None = Field(None, description="force the trace's format instead of detecting it")
    read: dict[str, float | str | list[str]] = Field(default_factory=dict, description="as links.read")
    assign: Literal["round-robin", "random"] = Field("round-robin", description="which series each home gets")

    @model_validator(mode="after")
    def _one_source(self) -> DelaysSection:
        if (self.trace is None) == (self.preset is None):
            raise ValueError("expected either trace or preset")
        return self


class LinksSection(Section):
    """What shapes each home's access link: a trace file, a preset, constant values, or a mixture."""

    trace: str | None = Field(None, description="a link trace; any format that `testbed traces inspect` reads")
    preset: str | None = Field(
        None,
        description="links made from public figures, one a home, by seed: dsl, fttc, "
        "cable, fibre, lte, satellite or mixed, see traces/README.md",
    )
    format: str | None = Field(None, description="force the trace's format instead of detecting it")
    read: dict[str, float | str | list[str]] = Field(
        default_factory=dict,
        description="what the file does not say, as the options of `testbed traces`: map, zone, dates, every_s, rule …",
    )
    delays: DelaysSection | None = Field(None, description="another source for RTT, jitter and loss")
    fill: Literal["default", "preset"] = Field(
        "default",
        description="jitter and loss that the trace does not have: 0, or drawn from links.preset (mixed by default)",
    )
    download: Rate | None = Field(
        None, description="constant TCP goodput: without a trace, or beside one that has no download"
    )
    upload: Rate | None = None
    rtt: Delay | None = Field(None, description="constant round trip home - server; likewise")
    jitter: Delay | None = Field(None, description="mean difference of successive RTTs; overrides the trace's")
    loss: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        None, description="round-trip packet loss, 0 to 1; overrides the trace's"
    )
    assign: Assign = Field("round-robin", description="which series of the file each home gets")
    mapping: dict[str, str] = Field(default_factory=dict, description="home: name in the trace, for by-name")
    start: Duration = Field(si(0.0), description="where in the trace the experiment starts")
    stagger: bool = Field(False, description="start homes that share one series at different places in it, by seed")
    end: Literal["loop", "hold", "stop"] = Field("loop", description="what happens after a trace's last sample")
    interpolate: Literal["step", "linear"] = Field("step", description="between samples: hold, or a straight line")
    resolution: PositiveDuration = Field(si(0.1), description="changes closer than this (real time) are merged")
    buffer: PositiveDuration = Field(si(0.1), description="bottleneck buffer, as time at the link's rate")
    queue: Literal["fifo", "fq_codel", "cake"] = Field(
        "fifo", description="how every bottleneck queues: byte FIFO, or fq_codel or cake where the kernel has them"
    )

    @model_validator(mode="after")
    def _trace_or_constant(self) -> LinksSection:
        constants = [self.download, self.upload, self.rtt]
        if self.trace is not None and self.preset is not None and self.fill != "preset":
            raise ValueError("trace and preset exclude each other; remove one, or add fill: preset")
        source = "trace" if self.trace is not None else "preset" if self.preset is not None else None
        if source is None and any(c is None for c in constants):
            raise ValueError("expected either trace, or preset, or all of download, upload and rtt")
        if source == "preset" and any(c is not None for c in constants):
            raise ValueError(f"{source} and constant download/upload/rtt exclude each other; remove one")
        if self.mapping and self.assign != "by-name":
            raise ValueError(f"mapping needs assign: by-name (found {self.assign})")
        return self


class AvailabilitySection(Section):
    """When devices are there. Without a trace they always are."""

    trace: str | None = Field(None, description="an availability trace (device, start, end)")
    preset: str | None = Field(
        None,
        description="availability made from public figures, one series a device, by "
        "seed: evening, overnight-idle, office, flaky, see traces/README.md",
    )
    format: str | None = Field(None, description="force the trace's format instead of detecting it")
    read: dict[str, float | str | list[str]] = Field(
        default_factory=dict,
        description="what the file does not say, as the options of `testbed traces`: map, zone, dates, every_s, rule …",
    )
    assign: Assign = Field(
        "by-name", description="which series each device gets; by-name: those not in the file are always available"
    )
    mapping: dict[str, str] = Field(default_factory=dict, description="device: name in the trace, for by-name")
    start: Duration = Field(si(0.0), description="where in the trace the experiment starts")
    end: Literal["loop", "hold", "stop"] = Field("hold", description="what happens after the trace's end")
    churn: Literal["kill", "suspend", "disconnect"] = Field(
        "kill", description="what leaving is: process dies with its memory, frozen, or only the link is down"
    )

    @model_validator(mode="after")
    def _one_source(self) -> AvailabilitySection:
        if self.trace is not None and self.preset is not None:
            raise ValueError("trace and preset exclude each other; remove one")
        return self


class DeviceDefinition(Section):
    speed: Speed
    memory: Size
    power: float | None = Field(None, ge=0, description="watts under load")


class DevicesSection(Section):
    """Which computer is in which home."""

    profiles: list[str] = Field(
        default_factory=lambda: ["volunteer"], min_length=1, description="of traces/devices/, or of `define`"
    )
    assign: Literal["round-robin", "random"] = Field("round-robin", description="which profile each home gets")
    mapping: dict[str, str] = Field(default_factory=dict, description="home: profile; the others by `assign`")
    population: str | None = Field(
        None,
        description="draw the homes' devices from this population, by seed: households, volunteers, phones, "
        "laptops, desktops, single-board-computers, mixed; see traces/README.md",
    )
    count: int | None = Field(None, ge=1, description="how many devices, so homes, where topology does not say")
    define: dict[str, DeviceDefinition] = Field(default_factory=dict, description="profiles of your own")
    speed_factor: float = Field(1.0, ge=1e-6, le=1e6, description="multiplies every speed, to fit a small model")


class ModelSection(Section):
    """A published model's name alone (`model: opt-13b`) will do; keys beside `name` replace its own."""

    name: str | None = Field(
        None,
        description="a published shape, see docs/models.md: opt-125m … opt-175b, "
        "llama-2-7b, -13b, -70b, gpt-3-125m … gpt-3-175b",
    )
    kind: Literal["gpt", "opt", "llama"] = Field("gpt", description="family of decoder-only transformers")
    layers: int = Field(4, ge=1, le=1000, description="transformer blocks")
    d_model: int = Field(128, ge=1, description="width")
    heads: int = Field(4, ge=1, description="divides d_model")
    kv_heads: int | None = Field(None, ge=1, description="heads of keys and values, divides heads; default heads")
    d_ff: int | None = Field(None, ge=1, description="default 4 × d_model")
    sequence: int = Field(64, ge=2, description="tokens a sample; 1024 with a name")
    vocabulary: int = Field(256, ge=256, description="256: bytes")
    positions: int | None = Field(
        None, ge=2, description="the context, and learned positions of gpt and opt; default sequence"
    )

    @model_validator(mode="before")
    @classmethod
    def _published(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return value
        try:
            spec = published(value["name"])
        except InputError as error:
            raise ValueError(error.problem + (f" ({error.hint})" if error.hint else "")) from None
        shape = {
            "kind": spec.family,
            "positions": spec.positions,
            **{
                k: getattr(spec, k)
                for k in ("layers", "d_model", "heads", "kv_heads", "d_ff", "sequence", "vocabulary")
            },
        }
        return {**shape, **value, "name": spec.name}

    @model_validator(mode="after")
    def _consistent(self) -> ModelSection:
        if self.d_model % self.heads:
            raise ValueError(f"d_model {self.d_model} is not a multiple of heads {self.heads}")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.kv_heads and self.kv_heads != self.heads and self.kind != "llama":
            raise ValueError(f"kv_heads {self.kv_heads} of {self.heads} heads needs kind: llama (found {self.kind})")
        if self.kind == "llama" and self.d_model // self.heads % 2:
            raise ValueError(f"rotary positions need an even d_model / heads; found {self.d_model} / {self.heads}")
        if self.positions is not None and self.sequence > self.positions:
            raise ValueError(f"sequence {self.sequence} is longer than the {self.positions} positions of the model")
        return self

    @property
    def spec(self) -> ModelSpec:
        """As runners read it."""
        tied = self.name is not None and PUBLISHED[self.name].tied_head
        return ModelSpec(
            self.name or self.kind,
            self.layers,
            self.d_model,
            self.heads,
            self.d_ff or 4 * self.d_model,
            self.sequence,
            self.vocabulary,
            self.kind,
            self.kv_heads,
            self.positions,
            tied,
        )


class OptimizerSection(Section):
    name: Literal["adamw"] = "adamw"
    lr: float = Field(1e-3, gt=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    weight_decay: float = Field(0.1, ge=0)
    eps: float = Field(1e-8, gt=0)


class TrainingSection(Section):
    """The runner and its job. Keys beyond these are the runner's own options and are checked by the runner."""

    model_config = ConfigDict(extra="allow", validate_default=True)

    runner: str = Field("pipeline", description="the training strategy, see docs/runners.md")
    batch: int = Field(16, ge=1, description="global batch, in samples; constant under churn")
    micro_batches: int = Field(4, ge=1, description="divides batch")
    steps: int = Field(20, ge=1, le=10**9, description="optimizer steps")
    seed: int | None = Field(None, ge=0, lt=2**63, description="default: the experiment's seed")
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)

    @model_validator(mode="after")
    def _micro_batches_fit(self) -> TrainingSection:
        if self.batch % self.micro_batches:
            raise ValueError(f"batch {self.batch} is not a multiple of micro_batches {self.micro_batches}")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The runner's own settings."""
        return dict(self.model_extra or {})


class NetworkSection(Section):
    switch: Literal["bridge", "ovs"] = Field("bridge", description="Linux bridge, or Open vSwitch")
    delay_backend: str = Field(
        "auto",
        description="what delays packets: netem, nfqueue or an installed backend (docs/delay.md); auto: the first that "
        "works here, netem where the kernel has it",
    )
    congestion_control: str = Field("cubic", pattern=r"^[a-z0-9_]+$", description="TCP's, in every host")


class CrossTrafficSection(Section):
    """Other people's traffic in some homes, while training runs. Datagrams that don't slow down."""

    homes: Literal["all"] | list[Name] = Field("all", description="which homes have it, each its own")
    direction: Literal["down", "up", "both"] = Field("down", description="seen from the home")
    rate: Rate | None = Field(None, description="as a speed test would count it: what it takes from the link")
    burst: PositiveDuration | None = Field(None, description="on for so long, with `pause`; without both: constant")
    pause: PositiveDuration | None = Field(None, description="then off for so long")
    periods: Literal["exponential", "fixed"] = Field(
        "exponential", description="burst and pause are means of random lengths (by seed), or the lengths themselves"
    )
    trace: str | None = Field(None, description="instead of rate: a CSV file with columns time and rate")
    end: Literal["loop", "hold", "stop"] = Field("loop", description="what happens after a trace's last sample")
    start: Duration = Field(si(0.0), description="when it begins")
    stop: PositiveDuration | None = Field(None, description="when it ends; default: with the experiment")

    @model_validator(mode="after")
    def _one_kind(self) -> CrossTrafficSection:
        if (self.rate is None) == (self.trace is None):
            raise ValueError("expected either rate or trace")
        if (self.burst is None) != (self.pause is None):
            raise ValueError("burst and pause belong together; expected both or neither")
        if self.trace is not None and self.burst is not None:
            raise ValueError("a trace says itself when it pauses; remove burst and pause, or trace")
        return self


class FromStep(Section):
    step: int = Field(ge=0, description="of training")


class _Captures(Section):
    """Packets of some hosts, as Wireshark reads them; see docs/captures.md. Needs tcpdump."""

    homes: Literal["all"] | list[Name] = Field([], description="whose packets; `server` is a name here, too")
    snaplen: Size = Field(si(96), description="bytes kept of a packet; 96: the headers up to TCP's options")
    most: Size = Field(si(200e6), description="of each host's file; the capture ends there, the run goes on")

    @field_validator("homes", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return value.split(",") if isinstance(value, str) and value != "all" else value

    @field_validator("snaplen")
    @classmethod
    def _headers_fit(cls, value: float) -> float:
        if not 64 <= value <= 262144:
            raise ValueError(f"{value:g} bytes; expected 64 to 262144 bytes")
        return value


def _moment(value: Any) -> Any:
    """Text in the shape of a step, or a duration: one of the two is meant, so that only its fault is told."""
    return FromStep.model_validate(value) if isinstance(value, dict) else _DURATION.validate_python(value)


_DURATION = TypeAdapter(Duration)
CapturesSection = create_model(
    "CapturesSection",
    __base__=_Captures,
    __doc__=_Captures.__doc__,
    **{  # words of Python's own, so that they can't stand in a class
        "from": (
            Annotated[Any, BeforeValidator(lambda v: v if v is None or isinstance(v, FromStep) else _moment(v)),
                      WithJsonSchema({"anyOf": [TypeAdapter(Duration).json_schema(), FromStep.model_json_schema()]})],
            Field(None, description="emulated time, or `{step: 3}`; default: before the workers start"),
        ),
        "for": (PositiveDuration | None, Field(None, description="emulated time; default: to the run's end")),
    },
)  # fmt: skip


class ProbesSection(Section):
    """Measurement of every link before training starts; the verdict needs it."""

    enabled: bool = Field(True, description="without probes no run is called VALID")
    seconds: PositiveDuration = Field(si(1.0), description="length of one rate measurement")


class FidelitySection(Section):
    """What the verdict allows; the defaults are in docs/fidelity.md."""

    thresholds: dict[str, float | str] = Field(
        default_factory=dict, description="of the verdict, by name, e.g. `{replay_late_s: 100 ms}`; the others stay"
    )

    @model_validator(mode="before")
    @classmethod
    def _thresholds_alone(cls, data: Any) -> Any:
        """Thresholds without the word: `fidelity: {replay_late_s: 100 ms}`."""
        if isinstance(data, dict) and not any(isinstance(value, dict) for value in data.values()):
            return {"thresholds": data}
        return data


class OutputsSection(Section):
    report: bool = Field(True, description="report.html and figures at the end of a run")
    timeline: bool = Field(True, description="timeline.json for Perfetto")


class SimulationSection(Section):
    """For `engine: simulation` and `testbed simulate`."""

    tensors: Literal["meta", "real"] = Field(
        "meta", description="meta: shapes without data, so no losses; real: training as it is, for small models"
    )
    details: int = Field(
        20_000,
        ge=0,
        description="messages and computations that get events of their own; the others are in the totals only",
    )


class Experiment(Section):
    """An experiment file, as validated."""

    name: Name = Field(description="names the run folder")
    description: str = Field("", description="for the reader")
    seed: int = Field(0, ge=0, lt=2**63, description="of weights, batches, random loss and random assignment")
    engine: Literal["emulation", "simulation"] = Field(
        "emulation", description="real processes on an emulated network, or the same code in virtual time"
    )
    topology: TopologySection
    links: LinksSection
    availability: AvailabilitySection = Field(default_factory=AvailabilitySection)
    devices: DevicesSection = Field(default_factory=DevicesSection)
    model: ModelSection = Field(default_factory=ModelSection)
    training: TrainingSection = Field(default_factory=TrainingSection)
    network: NetworkSection = Field(default_factory=NetworkSection)
    time_scale: float = Field(1.0, gt=0, le=1e5, description="trace seconds that pass in one emulated second")
    tdf: TimeDilation = Field(
        1.0,
        description="time dilation: real seconds an emulated second takes; auto: the least that this machine "
        "carries, measured before the start",
    )
    time_limit: PositiveDuration = Field(si(1800.0), description="emulated time after which the run is ended")
    cross_traffic: list[CrossTrafficSection] = Field(
        default_factory=list, description="other traffic in the homes, see docs/cross-traffic.md"
    )
    captures: CapturesSection = Field(default_factory=CapturesSection)
    probes: ProbesSection = Field(default_factory=ProbesSection)
    fidelity: FidelitySection = Field(default_factory=FidelitySection)
    simulation: SimulationSection = Field(default_factory=SimulationSection)
    outputs: OutputsSection = Field(default_factory=OutputsSection)
    sweep: list[dict[str, Any]] = Field(
        default_factory=list,
        description="runs that `testbed run` and `testbed simulate` make of this experiment one "
        "after the other; each entry is settings as in --set, e.g. `{topology.homes: 4}`",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_many_homes_as_devices(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("devices"), dict):
            return data
        count, topology = data["devices"].get("count"), data.get("topology") or {}
        if count is None or not isinstance(topology, dict) or {"homes", "file"} & topology.keys():
            return data
        return {**data, "topology": {**topology, "homes": count}}
