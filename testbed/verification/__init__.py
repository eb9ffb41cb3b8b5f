"""`testbed verify`: an emulated network measured link by link against its settings, without training."""
