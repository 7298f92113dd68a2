#!/usr/bin/env python3
"""Causal attention of bf16 in PyTorch on a GPU, beside bench_attention_gpu.

usage: torch_attention.py [B,T,H,D ...]

A line for each of PyTorch's fused kernels: its milliseconds, forward and backward, medians of 30.
"""
import statistics, sys
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def timed(f, n=30):
    for _ in range(3):
        f()
    a = [torch.cuda.Event(enable_timing=True) for _ in range(2 * n)]
    for i in range(n):
        a[2 * i].record()
        f()
        a[2 * i + 1].record()
    torch.cuda.synchronize()
    return statistics.median(a[2 * i].elapsed_time(a[2 * i + 1]) for i in range(n))


for size in sys.argv[1:] or ("64,1024,12,64", "16,1024,25,64"):
    b, t, h, d = (int(x) for x in size.split(","))
    qkv = torch.randn(b, t, 3, h, d, device="cuda", dtype=torch.bfloat16)
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in qkv.unbind(2))
    g = torch.randn(b, t, h, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    for kernel in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(kernel):
            o = scaled_dot_product_attention(q, k, v, is_causal=True)
            fwd = timed(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
            bwd = timed(lambda: torch.autograd.grad(o, (q, k, v), g, retain_graph=True))
        name = kernel.name.split("_")[0].lower()
        print(f"torch-{name} forward {fwd:.4f} ms backward {bwd:.4f} ms", flush=True)
