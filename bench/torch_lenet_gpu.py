#!/usr/bin/env python3
"""PyTorch eager on a GPU: the training step of our run file lenet5-fashion (LeNet-5, AdamW), on one
random batch that lies on the GPU already. Prints one line; ms is the best of four ways: the
optimizer's fused kernel or not, waiting for the loss after each step (as our sessions do) or
letting steps queue up, which is the most that PyTorch can do."""
import argparse
import time

import torch
from torch import nn

a = argparse.ArgumentParser()
a.add_argument("--batch", type=int, default=64)
a.add_argument("--steps", type=int, default=200)
a.add_argument("--json", action="store_true")
a = a.parse_args()


def measure(fused, sync):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, fused=fused)
    x = torch.randn(a.batch, 1, 28, 28, device="cuda")
    y = torch.randint(0, 10, (a.batch,), device="cuda")

    def step():
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.item() if sync else None

    for _ in range(50):
        step()
    torch.cuda.synchronize()
    best = 1e9
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(a.steps):
            step()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / a.steps)
    return best * 1e3


ways = {(f, s): measure(f, s) for f in (False, True) for s in (False, True)}
least = min(ways.values())
if a.json:
    print('{"peer": "torch %s eager", "ms": %.4f, "images_per_s": %.0f}'
          % (torch.__version__, least, a.batch / least * 1e3))
else:
    each = " ".join("%s%s=%.3f" % ("fused" if f else "plain", "+sync" if s else "", ms)
                    for (f, s), ms in ways.items())
    print("torch %s lenet5 eager batch=%d ms=%.3f (%s)" % (torch.__version__, a.batch, least, each))
