#!/usr/bin/env python3
"""PyTorch on a GPU: a training step of a Llama (bf16 autocast, fused attention of shared keys, fused
AdamW, gradients clipped, torch.compile), on random tokens that lie there already. Prints one line, or
with --json an object. The same work as `loopline bench step llama --machine cuda --precision bf16`;
its sizes, SmolLM2-135M's, are the defaults."""
import argparse

import torch
from torch import nn
from torch.nn import functional as F

from torch_timed import time_language_model

SIZES = {"layers": 30, "width": 576, "heads": 9, "kv_heads": 3, "hidden": 1536, "seq": 2048, "vocab": 49152}
a = argparse.ArgumentParser()
for name, n in SIZES.items():
    a.add_argument("--" + name.replace("_", "-"), type=int, default=n)
a.add_argument("--batch", type=int, default=8)
a.add_argument("--seconds", type=float, default=3, help="to measure, and before that to warm up")
a.add_argument("--eager", action="store_true", help="without torch.compile")
a.add_argument("--json", action="store_true")
a = a.parse_args()
HEAD = a.width // a.heads


def linear(c, f):
    return nn.Linear(c, f, bias=False)


def rope(x, turn):
    p, q = x.float().chunk(2, -1)
    c, s = turn
    return torch.cat((p * c - q * s, q * c + p * s), -1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(a.width, 1e-5), nn.RMSNorm(a.width, 1e-5)
        self.q, self.proj = linear(a.width, a.heads * HEAD), linear(a.heads * HEAD, a.width)
        self.k, self.v = linear(a.width, a.kv_heads * HEAD), linear(a.width, a.kv_heads * HEAD)
        self.gate, self.up = linear(a.width, a.hidden), linear(a.width, a.hidden)
        self.down = linear(a.hidden, a.width)

    def forward(self, x, turn):
        b, t, _ = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(b, t, -1, HEAD).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rope(q, turn), rope(k, turn), v, is_causal=True,
                                           enable_gqa=a.heads != a.kv_heads)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(a.vocab, a.width)
        self.layers = nn.ModuleList(Layer() for _ in range(a.layers))
        self.norm = nn.RMSNorm(a.width, 1e-5)
        angle = torch.outer(torch.arange(a.seq), 1e5 ** (-torch.arange(0, HEAD, 2) / HEAD))
        self.register_buffer("cos", angle.cos()), self.register_buffer("sin", angle.sin())
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, x, y):
        h = self.token(x)
        for layer in self.layers:
            h = layer(h, (self.cos, self.sin))
        logits = F.linear(self.norm(h), self.token.weight)
        return F.cross_entropy(logits.view(-1, a.vocab), y.view(-1))


torch.manual_seed(1)
torch.set_float32_matmul_precision("high")
time_language_model(Llama(), "llama", a.vocab, a)
