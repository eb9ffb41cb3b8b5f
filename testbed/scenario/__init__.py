"""What both engines are told: links, delays, traffic, and how a run ends."""
