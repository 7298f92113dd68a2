#!/usr/bin/env python3
"""PyTorch on a GPU: a training step of ResNet-50 (bf16 autocast, channels last, fused SGD with
momentum, torch.compile), on random images that lie there already. Prints one line, or with --json
an object. The same work as `loopline bench step resnet50 --machine cuda --precision bf16`."""
import argparse

import torch
from torch import nn

from torch_timed import medians, report

a = argparse.ArgumentParser()
a.add_argument("--batch", type=int, default=256)
a.add_argument("--seconds", type=float, default=3, help="to measure, and before that to warm up")
a.add_argument("--eager", action="store_true", help="without torch.compile")
a.add_argument("--json", action="store_true")
a = a.parse_args()


def conv(c, f, size, stride=1):
    return nn.Sequential(nn.Conv2d(c, f, size, stride, size // 2, bias=False), nn.BatchNorm2d(f))


class Block(nn.Module):
    def __init__(self, c, f, stride):
        super().__init__()
        self.body = nn.Sequential(conv(c, f, 1), nn.ReLU(True), conv(f, f, 3, stride), nn.ReLU(True),
                                  conv(f, 4 * f, 1))
        self.short = conv(c, 4 * f, 1, stride) if stride > 1 or c != 4 * f else nn.Identity()

    def forward(self, x):
        return torch.relu(self.body(x) + self.short(x))


def resnet50():
    parts, c = [conv(3, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)], 64
    for stage, n in enumerate((3, 4, 6, 3)):
        f = 64 << stage
        for i in range(n):
            parts.append(Block(c, f, 2 if stage and i == 0 else 1))
            c = 4 * f
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 1000))


torch.manual_seed(1)
torch.backends.cudnn.benchmark = True
model = resnet50().cuda().to(memory_format=torch.channels_last)
run = model if a.eager else torch.compile(model)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
x = torch.randn(a.batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
y = torch.randint(0, 1000, (a.batch,), device="cuda")


def step():
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(run(x), y)
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)


s, cool = medians(step, a.seconds)
report("resnet50", a.batch, s, cool, {"images_per_s": round(a.batch / s)}, a.eager, a.json)
