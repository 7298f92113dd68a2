#!/usr/bin/env python3
"""PyTorch on a GPU: a training step of an image network (bf16 autocast, channels last, fused SGD with
momentum, torch.compile), on random images that lie there already. Prints one line, or with --json
an object. The same work as `loopline bench step NAME --machine cuda --precision bf16`."""
import argparse

import torch
from torch import nn

from torch_timed import medians, report


def conv(c, f, size, stride=1):
    return nn.Sequential(nn.Conv2d(c, f, size, stride, size // 2, bias=False), nn.BatchNorm2d(f))


class Block(nn.Module):
    def __init__(self, c, f, stride, wide):
        super().__init__()
        out = wide * f
        self.body = nn.Sequential(conv(c, f, 1), nn.ReLU(True), conv(f, f, 3, stride), nn.ReLU(True),
                                  conv(f, out, 1)) if wide > 1 else nn.Sequential(
            conv(c, f, 3, stride), nn.ReLU(True), conv(f, f, 3))
        self.short = conv(c, out, 1, stride) if stride > 1 or c != out else nn.Identity()

    def forward(self, x):
        return torch.relu(self.body(x) + self.short(x))


def resnet(depths, wide):
    parts, c = [conv(3, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)], 64
    for stage, n in enumerate(depths):
        f = 64 << stage
        for i in range(n):
            parts.append(Block(c, f, 2 if stage and i == 0 else 1, wide))
            c = wide * f
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 1000))


def rectified(c, f, size, stride=1):
    return nn.Sequential(conv(c, f, size, stride), nn.ReLU(True))


class Inception(nn.Module):
    def __init__(self, c, one, three_in, three, five_in, five, pool):
        super().__init__()
        self.branches = nn.ModuleList([
            rectified(c, one, 1),
            nn.Sequential(rectified(c, three_in, 1), rectified(three_in, three, 3)),
            nn.Sequential(rectified(c, five_in, 1), rectified(five_in, five, 3)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), rectified(c, pool, 1))])

    def forward(self, x):
        return torch.cat([b(x) for b in self.branches], 1)


def googlenet():
    half = nn.MaxPool2d(3, 2, ceil_mode=True)
    return nn.Sequential(
        rectified(3, 64, 7, 2), half, rectified(64, 64, 1), rectified(64, 192, 3), half,
        Inception(192, 64, 96, 128, 16, 32, 32), Inception(256, 128, 128, 192, 32, 96, 64), half,
        Inception(480, 192, 96, 208, 16, 48, 64), Inception(512, 160, 112, 224, 24, 64, 64),
        Inception(512, 128, 128, 256, 24, 64, 64), Inception(512, 112, 144, 288, 32, 64, 64),
        Inception(528, 256, 160, 320, 32, 128, 128), nn.MaxPool2d(2, 2, ceil_mode=True),
        Inception(832, 256, 160, 320, 32, 128, 128), Inception(832, 384, 192, 384, 48, 128, 128),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1024, 1000))


def alexnet():
    parts, c = [], 3
    for f, size, stride, pad, pool in ((64, 11, 4, 2, 1), (192, 5, 1, 2, 1), (384, 3, 1, 1, 0),
                                       (256, 3, 1, 1, 0), (256, 3, 1, 1, 1)):
        parts += [nn.Conv2d(c, f, size, stride, pad), nn.ReLU(True)] + [nn.MaxPool2d(3, 2)] * pool
        c = f
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(6), nn.Flatten(),
                         nn.Dropout(), nn.Linear(9216, 4096), nn.ReLU(True),
                         nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(True), nn.Linear(4096, 1000))


models = {"resnet50": lambda: resnet((3, 4, 6, 3), 4), "resnet18": lambda: resnet((2, 2, 2, 2), 1),
          "googlenet": googlenet, "alexnet": alexnet}
a = argparse.ArgumentParser()
a.add_argument("model", choices=models)
a.add_argument("--batch", type=int, default=256)
a.add_argument("--seconds", type=float, default=3, help="to measure, and before that to warm up")
a.add_argument("--eager", action="store_true", help="without torch.compile")
a.add_argument("--json", action="store_true")
a = a.parse_args()

torch.manual_seed(1)
torch.backends.cudnn.benchmark = True
model = models[a.model]().cuda().to(memory_format=torch.channels_last)
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
report(a.model, a.batch, s, cool, {"images_per_s": round(a.batch / s)}, a.eager, a.json)
