"""What happens over time: links replayed, devices toggled, cross traffic."""
