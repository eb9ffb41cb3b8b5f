"""Weight-affine tasks (ours): weights of a few layers stay at a device for a step, and slabs of tokens pass through."""
