"""What a parameter server and its workers say to each other. See docs/data_parallel.md."""

HELLO = "hello"  # worker -> server: a life begins
TASK = "task"  # server -> worker: compute these samples' gradients for these buckets, with the weights of `step`
WEIGHTS = "weights"  # server -> worker: a chunk of a bucket's weights, the version in meta
GRADIENT = "gradient"  # worker -> server: a chunk of a bucket's gradient of a task; the loss goes with the last bucket
