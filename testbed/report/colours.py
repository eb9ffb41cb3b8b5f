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
