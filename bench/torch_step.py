#!/usr/bin/env python3
"""One training step of a model in PyTorch, timed on a fixed random batch, for bench/compare.sh.

usage: torch_step.py lenet5|gpt|resnet18 [--threads N] [--steps N] [--onednn 0|1] [--precision f32|bf16]

The same work as `loopline bench step`: forward, backward, update (momentum for images, AdamW for the
GPT). Prints the median step in milliseconds. Memory that glibc frees is kept, without which every
step takes page faults; --onednn 0 keeps convolutions and products away from oneDNN, which is faster
on some machines and slower on others: compare.sh takes the better.
"""
import argparse, os, statistics, sys, time

p = argparse.ArgumentParser()
p.add_argument("model", choices=("lenet5", "gpt", "resnet18"))
p.add_argument("--threads", type=int, default=2)
p.add_argument("--steps", type=int, default=5)
p.add_argument("--onednn", type=int, default=1)
p.add_argument("--precision", choices=("f32", "bf16"), default="f32")
a = p.parse_args()
keep = {"MALLOC_MMAP_THRESHOLD_": "2000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000",
        "MALLOC_TOP_PAD_": "268435456", "OMP_NUM_THREADS": str(a.threads)}
if os.environ.get("MALLOC_TOP_PAD_") != keep["MALLOC_TOP_PAD_"]:
    os.execve(sys.executable, [sys.executable] + sys.argv, {**os.environ, **keep})

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(a.threads)
torch.manual_seed(1)
torch._C._set_mkldnn_enabled(bool(a.onednn))


def lenet5():
    return nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(True), nn.MaxPool2d(2),
                         nn.Conv2d(6, 16, 5), nn.ReLU(True), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(400, 120), nn.ReLU(True), nn.Linear(120, 84), nn.ReLU(True),
                         nn.Linear(84, 10))


class Basic(nn.Module):
    def __init__(self, cin, c, stride):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(cin, c, 3, stride, 1, bias=False), nn.BatchNorm2d(c),
                               nn.ReLU(True), nn.Conv2d(c, c, 3, 1, 1, bias=False),
                               nn.BatchNorm2d(c))
        same = stride == 1 and cin == c
        self.b = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(cin, c, 1, stride, bias=False), nn.BatchNorm2d(c))

    def forward(self, x):
        return F.relu(self.a(x) + self.b(x), True)


def resnet18():
    layers, cin = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)], 64
    for i, c in enumerate((64, 128, 256, 512)):
        for j in range(2):
            layers.append(Basic(cin, c, 2 if i and not j else 1))
            cin = c
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Layer(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.heads, self.n1, self.n2 = heads, nn.LayerNorm(c), nn.LayerNorm(c)
        self.qkv, self.proj = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.up, self.down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2)
                   for z in self.qkv(self.n1(x)).split(c, 2))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(o.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers=4, c=256, heads=4, seq=256, vocab=256):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, c), nn.Embedding(seq, c)
        self.layers = nn.Sequential(*(Layer(c, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(c)

    def forward(self, x):
        h = self.layers(self.tok(x) + self.pos.weight[: x.shape[1]])
        return F.linear(self.norm(h), self.tok.weight).flatten(0, 1)


if a.model == "gpt":
    model, x = GPT(), torch.randint(0, 256, (8, 256))
    y = torch.randint(0, 256, (8 * 256,))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
else:
    small = a.model == "lenet5"
    model = lenet5() if small else resnet18().to(memory_format=torch.channels_last)
    x = torch.randn(64, 1, 28, 28) if small else torch.randn(32, 3, 32, 32)
    if not small:
        x = x.to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (x.shape[0],))
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

times = []
for i in range(a.steps + 2):
    start = time.perf_counter()
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=a.precision == "bf16"):
        loss = F.cross_entropy(model(x).float(), y)
    loss.backward()
    opt.step()
    loss.item()
    if i >= 2:
        times.append(time.perf_counter() - start)
print(f"{1e3 * statistics.median(times):.3f}")
