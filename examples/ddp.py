"""A stock PyTorch script: DistributedDataParallel over gloo. It knows nothing of the testbed."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
model = DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
began = time.time()
for _ in range(5):
    x = torch.randn(32, 256)
    loss = (model(x) - x[:, :8]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
total = sum(p.sum().item() for p in model.parameters())
print(
    f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {loss.item():.4f}, parameters sum to {total:.4f}, "
    f"5 steps in {time.time() - began:.2f} s",
    flush=True,
)
dist.destroy_process_group()
