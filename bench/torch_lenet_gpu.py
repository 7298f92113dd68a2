#!/usr/bin/env python3
"""PyTorch on a GPU: the training step of our run file lenet5-fashion (LeNet-5, AdamW), on one random
batch that lies on the GPU already. Prints one line; ms is the best of all ways: eager or the whole
step in a CUDA graph, the optimizer's fused kernel or not, waiting for the loss after each step (as
our sessions do) or letting steps queue up."""
import argparse
import time

import torch
from torch import nn

a = argparse.ArgumentParser()
a.add_argument("--batch", type=int, default=64)
a.add_argument("--steps", type=int, default=200)
a.add_argument("--json", action="store_true")
a = a.parse_args()


def measure(graph, fused, sync):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, fused=fused,
                            capturable=graph)
    x = torch.randn(a.batch, 1, 28, 28, device="cuda")
    y = torch.randint(0, 10, (a.batch,), device="cuda")

    def step():
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss

    side = torch.cuda.Stream()  # where a graph may be captured after it
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(50):
            step()
    torch.cuda.current_stream().wait_stream(side)
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            loss = step()
    torch.cuda.synchronize()

    def once():
        if graph:
            captured.replay()
        done = loss if graph else step()
        if sync:
            done.item()

    best = 1e9
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(a.steps):
            once()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / a.steps)
    return best * 1e3


both = (False, True)
ways = {(g, f, s): measure(g, f, s) for g in both for f in both for s in both}
least = min(ways.values())
if a.json:
    print('{"peer": "torch %s", "ms": %.4f, "images_per_s": %.0f}'
          % (torch.__version__, least, a.batch / least * 1e3))
else:
    each = " ".join("%s%s%s=%.3f" % ("graph+" if g else "", "fused" if f else "plain", "+sync" if s else "", ms)
                    for (g, f, s), ms in ways.items())
    print("torch %s lenet5 batch=%d ms=%.3f (%s)" % (torch.__version__, a.batch, least, each))
