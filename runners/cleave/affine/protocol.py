"""What server and devices say to each other. All in order on one connection each way; `k` in the meta is the kind.

To a device (tag TO_DEVICE):
    weights   g group, s step, t tokens of a slab, u units, i of n pieces, a where it begins    [a piece of the weights]
    forward   u duty, g, j sample, c slab, r: whether the result is wanted    [the slab's input]
    backward  likewise                                [its output's gradient; at the head: logsumexp over all words]
    gradient  u, p: pieces [[number, begin, end], …]: these parts of the duty's summed gradient are to come

To the server (tag TO_SERVER): the same kinds with u, j, c (or u, p: the piece's number), and tensors where wanted.

A duty is one device's part of a group's work in a step: some samples, and pieces of their summed gradient.
"""

TO_DEVICE, TO_SERVER = "affine", "affine.done"
WEIGHTS, FORWARD, BACKWARD, GRADIENT = "weights", "forward", "backward", "gradient"
