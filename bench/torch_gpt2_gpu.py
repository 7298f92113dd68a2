#!/usr/bin/env python3
"""PyTorch on a GPU: a training step of GPT-2 (bf16 autocast, fused attention, fused AdamW, gradients
clipped, torch.compile), on random tokens that lie there already. Prints one line, or with --json an
object. The same work as `loopline bench step gpt2-124m --machine cuda --precision bf16`."""
import argparse

import torch
from torch import nn
from torch.nn import functional as F

from torch_timed import time_language_model

SIZES = {"124m": (12, 12, 768), "355m": (24, 16, 1024), "1558m": (48, 25, 1600)}
VOCAB = 50304

a = argparse.ArgumentParser()
a.add_argument("size", choices=SIZES)
a.add_argument("--batch", type=int, default=64)
a.add_argument("--seq", type=int, default=1024)
a.add_argument("--heads", type=int, help="in place of the size's own")
a.add_argument("--seconds", type=float, default=3, help="to measure, and before that to warm up")
a.add_argument("--eager", action="store_true", help="without torch.compile")
a.add_argument("--json", action="store_true")
a = a.parse_args()


class Layer(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        parts = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width):
        super().__init__()
        self.token, self.place = nn.Embedding(VOCAB, width), nn.Embedding(a.seq, width)
        self.layers = nn.ModuleList(Layer(heads, width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, x, y):
        h = self.token(x) + self.place.weight
        for layer in self.layers:
            h = layer(h)
        logits = F.linear(self.norm(h), self.token.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), y.view(-1))


torch.manual_seed(1)
torch.set_float32_matmul_precision("high")
layers, heads, width = SIZES[a.size]
time_language_model(Gpt(layers, a.heads or heads, width), "gpt2-" + a.size, 50257, a)
