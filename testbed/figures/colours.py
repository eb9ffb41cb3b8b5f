"""Colours of all figures: told apart by colour-blind readers, and light or dark enough for grey print."""

STATE = {"compute": "#1f6fb4", "wait": "#d3d8df", "send": "#e08214", "receive": "#1b9e77", "offline": "#f4c7c3"}
SET = "#6b7280"
MEASURED = "#1f6fb4"
PROBED = "#111827"
LEAVE = "#c0392b"
RETURN = "#1b9e77"
RECOVERY = "#f6d9a8"
REDONE = "#b5651d"
INK = "#1f2937"
GRID = "#e5e7eb"
SERIES = (MEASURED, REDONE, RETURN, "#7b3fa0", LEAVE, SET, "#c79a00", "#0f8b8d")

DARK = {  # what stands in for a colour on a dark page
    INK: "#e5e7eb",
    GRID: "#374151",
    SET: "#9ca3af",
    PROBED: "#f9fafb",
    MEASURED: "#3d8fd1",
    LEAVE: "#f0776c",
    RECOVERY: "#5c4a26",
    REDONE: "#e09a5b",
    RETURN: "#35c79a",
    "#7b3fa0": "#c08be0",
    STATE["wait"]: "#4b5563",
    STATE["offline"]: "#6b3b39",
}


def faint(colour: str, opacity: float = 0.25) -> str:
    """A '#rrggbb' colour for an area under a line."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
