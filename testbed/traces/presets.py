"""What generated populations are made of. Every figure's public source is named here and in traces/README.md.

Quantiles are those of homes (or sessions) at 5, 25, 50, 75 and 95 %.
"""

from __future__ import annotations

from dataclasses import dataclass

LEVELS = (0.05, 0.25, 0.50, 0.75, 0.95)
Quantiles = tuple[float, float, float, float, float]

OFCOM = (
    "Ofcom, UK home broadband performance: panellist data, March 2023 (Open Government Licence v3.0), "
    "24-hour averages of {n} homes"
)


@dataclass(frozen=True)
class LinkPreset:
    """Access links of one technology: quantiles over homes of each home's mean over the day.

    down_mbps, up_mbps: TCP goodput. rtt_ms. jitter_ms: downstream plus upstream. loss_pct.
    down_dip, up_dip: by how much a home's lowest rate of the day lies below its mean, as a share of the mean.
    down_low_share, up_low_share: the time spent low, (max - mean) / (max - min) of a median home.
    rank_correlation: Spearman's, between homes' download and upload, and download and RTT.
    rtt_sigma: standard deviation of ln RTT within a home.
    """

    title: str
    homes_measured: int
    down_mbps: Quantiles
    up_mbps: Quantiles
    rtt_ms: Quantiles
    jitter_ms: Quantiles
    loss_pct: Quantiles
    down_dip: Quantiles
    up_dip: Quantiles
    down_low_share: float
    up_low_share: float
    rank_correlation: tuple[float, float]
    rtt_sigma: float = 0.09  # robust, WizardTim/speedtest-data (residential cable, 17 months)
    share: float = 0.0  # of homes in the 'mixed' population: sum of the panel's national weights

    @property
    def source(self) -> str:
        return OFCOM.format(n=self.homes_measured)


LINKS: dict[str, LinkPreset] = {
    "dsl": LinkPreset(
        title="ADSL2+",
        homes_measured=76,
        down_mbps=(2.503, 6.334, 11.88, 15.85, 20.11),
        up_mbps=(0.364, 0.6758, 0.8446, 0.9312, 1.091),
        rtt_ms=(12.03, 17.42, 25.98, 30.42, 38.25),
        jitter_ms=(0.8882, 1.181, 1.621, 1.965, 3.97),
        loss_pct=(0.00242, 0.01574, 0.04795, 0.1135, 0.4752),
        down_dip=(0.03138, 0.07126, 0.1094, 0.1959, 0.3171),
        up_dip=(0.02768, 0.07526, 0.1119, 0.162, 0.2378),
        down_low_share=0.19,
        up_low_share=0.33,
        rank_correlation=(0.48, -0.49),
        rtt_sigma=0.17,  # robust, amadeuspzs/broadband-monitor (6 Mbit/s line, 6 weeks)
        share=0.055,
    ),
    "fttc": LinkPreset(
        title="fibre to the cabinet (VDSL2)",
        homes_measured=1359,
        down_mbps=(19.3, 35.28, 49.86, 67.98, 73.85),
        up_mbps=(2.914, 7.277, 11.84, 18.43, 18.61),
        rtt_ms=(5.898, 8.725, 11.1, 15.39, 22.32),
        jitter_ms=(0.331, 0.4728, 0.6033, 0.8156, 1.571),
        loss_pct=(0.001138, 0.00761, 0.02035, 0.06199, 0.2049),
        down_dip=(0.009682, 0.03671, 0.07164, 0.1234, 0.2492),
        up_dip=(0.003536, 0.009861, 0.02148, 0.04349, 0.1217),
        down_low_share=0.14,
        up_low_share=0.22,
        rank_correlation=(0.88, -0.23),
        share=0.577,
    ),
    "cable": LinkPreset(
        title="cable (DOCSIS)",
        homes_measured=507,
        down_mbps=(132.7, 137.0, 274.0, 383.4, 544.6),
        up_mbps=(20.74, 25.47, 35.95, 36.82, 52.39),
        rtt_ms=(9.376, 11.91, 14.17, 16.0, 19.49),
        jitter_ms=(1.295, 1.634, 1.994, 2.356, 3.077),
        loss_pct=(0.001789, 0.006335, 0.02142, 0.05315, 0.2157),
        down_dip=(0.01521, 0.0366, 0.0676, 0.1269, 0.2698),
        up_dip=(0.004563, 0.01536, 0.03677, 0.08456, 0.2897),
        down_low_share=0.14,
        up_low_share=0.10,
        rank_correlation=(0.85, -0.16),
        share=0.211,
    ),
    "fibre": LinkPreset(
        title="fibre to the premises",
        homes_measured=596,
        down_mbps=(72.59, 103.2, 175.3, 324.1, 915.8),
        up_mbps=(19.07, 28.86, 64.65, 108.5, 859.1),
        rtt_ms=(2.602, 5.026, 6.607, 9.738, 15.58),
        jitter_ms=(0.1457, 0.2055, 0.4238, 0.7704, 1.161),
        loss_pct=(0.0, 0.00212, 0.01081, 0.03283, 0.1354),
        down_dip=(0.006077, 0.01742, 0.04054, 0.08454, 0.3729),
        up_dip=(0.00116, 0.004861, 0.01101, 0.02533, 0.1043),
        down_low_share=0.17,
        up_low_share=0.21,
        rank_correlation=(0.83, -0.12),
        share=0.145,
    ),
    "lte": LinkPreset(
        title="fixed wireless (4G and 5G routers)",
        homes_measured=64,
        down_mbps=(8.659, 26.67, 34.99, 70.98, 299.7),
        up_mbps=(2.578, 5.605, 11.62, 20.6, 32.07),
        rtt_ms=(20.93, 32.49, 40.73, 49.41, 63.34),
        jitter_ms=(3.995, 7.96, 10.15, 13.8, 19.13),
        loss_pct=(0.02294, 0.07612, 0.2063, 0.4655, 1.975),
        down_dip=(0.1404, 0.3564, 0.4852, 0.6409, 0.7786),
        up_dip=(0.01119, 0.157, 0.2442, 0.4309, 0.6155),
        down_low_share=0.52,
        up_low_share=0.47,
        rank_correlation=(0.22, -0.24),
    ),
    "satellite": LinkPreset(
        title="low-orbit satellite",
        homes_measured=12,
        down_mbps=(55.49, 87.21, 191.1, 194.8, 199.1),
        up_mbps=(10.88, 14.43, 17.73, 18.4, 19.6),
        rtt_ms=(34.2, 34.96, 35.56, 36.11, 42.08),
        jitter_ms=(12.34, 12.73, 13.38, 13.75, 14.27),
        loss_pct=(0.1848, 0.2119, 0.2456, 0.2778, 5.222),
        down_dip=(0.1524, 0.3029, 0.4575, 0.4871, 0.5339),
        up_dip=(0.3203, 0.3742, 0.4008, 0.4502, 0.5262),
        down_low_share=0.50,
        up_low_share=0.52,
        rank_correlation=(0.51, -0.49),
    ),
}

# Load over the day, 0 at its lowest and 1 at its highest: (hour, load). From the same data: how far the
# median download of fixed-wireless homes, which share a radio cell, falls in each of Ofcom's nine bins.
DAY = (
    (3.0, 0.0),
    (9.0, 0.38),
    (15.0, 0.61),
    (18.5, 0.79),
    (19.5, 0.86),
    (20.5, 1.0),
    (21.5, 0.97),
    (22.5, 0.74),
    (23.5, 0.49),
)
DAY_WEIGHT = 0.6  # correlation of a home's load with the curve above; assumption
AUTOCORRELATION_15MIN = 0.57  # of residual download: household log jackcarter/jackcarter.github.io, 11 months
UP_DOWN_RESIDUAL = 0.3  # correlation of a home's residual rates; 0.08 to 0.64 in four household logs
JITTER_SIGMA = 0.5  # of ln jitter within a home; assumption
LOSS_SIGMA = 1.0  # of ln loss within a home; assumption


@dataclass(frozen=True)
class SessionPreset:
    """One session a day for most devices, at times of day that many devices share.

    length_min: quantiles of a session's length [min]. starts: (hour, weight) of its start.
    always_on: share of devices that stay on all day.
    """

    title: str
    source: str
    length_min: Quantiles
    starts: tuple[tuple[int, float], ...]
    always_on: float = 0.0


@dataclass(frozen=True)
class RenewalPreset:
    """On and off in turn, without regard to the time of day.

    up_weibull: (shape, scale [h]) of a session. down_lognormal: (mu, sigma) of ln gap [h].
    """

    title: str
    source: str
    up_weibull: tuple[float, float]
    down_lognormal: tuple[float, float]


@dataclass(frozen=True)
class StagedPreset:
    """A scene for demonstrations: every device stays, but `leavers` of them are away once.

    leave_s, away_s: (least, most) of when they leave and for how long, uniform.
    """

    title: str
    source: str
    leavers: int
    leave_s: tuple[float, float]
    away_s: tuple[float, float]
    span_s: float


AVAILABILITY: dict[str, SessionPreset | RenewalPreset | StagedPreset] = {
    "evening": SessionPreset(
        "home computers used in the evening",
        "length: Weibull(0.85, 2.04 h), fitted to sessions of Overnet peers in homes (Failure Trace Archive, "
        "JPDC 2013, S0743731513000634); start: the evening rise of load in the Ofcom panel, 2023",
        (3.72, 28.26, 79.53, 179.75, 445.01),
        ((17, 0.18), (18, 0.25), (19, 0.25), (20, 0.20), (21, 0.12)),
    ),
    "overnight-idle": SessionPreset(
        "phones idle on the charger over night",
        "StudentLife (Dartmouth 2013): charging episodes of an hour or more, length and local hour of start",
        (84.8, 133.2, 444.7, 496.6, 583.5),
        ((0, 8), (1, 7), (2, 3), (3, 2), (4, 1), (6, 1), (8, 1), (10, 1), (12, 2), (13, 1), (20, 1), (23, 3)),
    ),
    "office": SessionPreset(
        "office computers",
        "44 % are switched off at night (Webber et al., LBNL-46930, 2001); a working day is 7.9 h (American "
        "Time Use Survey 2004) and an hour's break; spread, start at 7 to 9: assumption",
        (462.0, 510.0, 534.0, 558.0, 606.0),
        ((7, 1), (8, 2), (9, 1)),
        always_on=0.56,
    ),
    "flaky": RenewalPreset(
        "volunteers' computers that come and go",
        "SETI@home hosts, fits by Javadi et al. as used in ComBoS (arcos-combos/combos, parameters.xml): up "
        "Weibull(0.393, 2.964 h), down log-normal(-0.586, 2.444) h; other places of that file say 2.844, not verified",
        (0.393, 2.964),
        (-0.586, 2.444),
    ),
    "two-leave": StagedPreset(
        "a scene: all stay but two, which are away once",
        "no measurement",
        leavers=2,
        leave_s=(1500.0, 2100.0),
        away_s=(600.0, 1200.0),
        span_s=7200.0,
    ),
}
