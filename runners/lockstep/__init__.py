"""Training in lockstep: members that reduce together and commit each step at the server. See docs/data_parallel.md."""
