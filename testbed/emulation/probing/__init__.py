"""Traffic of our own that measures links and machine."""
