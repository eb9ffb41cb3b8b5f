"""Training that goes on while devices come and go: epochs, checkpoints, state on the move, books of what was lost.

A strategy fills in `runners.elastic.strategy.Strategy` and gets the rest from here. See docs/strategy.md.
"""
