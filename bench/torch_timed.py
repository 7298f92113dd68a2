"""How PyTorch's steps on a GPU are timed, as `loopline bench step` times ours: a GPU slows down as it warms,
so steps run for as long as they are measured before they are."""
import json
import statistics
import time

import torch


def medians(step, seconds):
    """Seconds of a step once warm, and of as long before."""
    def run(least):
        times, begin = [], time.perf_counter()
        while len(times) < 5 or time.perf_counter() - begin < least:
            start = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    run(0)  # compiles
    cool = run(seconds)
    return run(seconds), cool


def report(model, batch, s, cool, rate, eager, as_json):
    out = {"peer": "torch %s %s" % (torch.__version__, "eager" if eager else "compiled"),
           "model": model, "batch": batch, "ms": round(1e3 * s, 3), "cool_ms": round(1e3 * cool, 3),
           **rate, "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)}
    print(json.dumps(out) if as_json else " ".join("%s=%s" % kv for kv in out.items()))


def time_language_model(model, name, vocab, a):
    """Steps of a model that gives the loss of tokens x and labels y: bf16, clipped, fused AdamW."""
    model = model.cuda()
    run = model if a.eager else torch.compile(model)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    x, y = (torch.randint(0, vocab, (a.batch, a.seq), device="cuda") for _ in range(2))

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)

    s, cool = medians(step, a.seconds)
    report(name, a.batch, s, cool, {"tokens_per_s": round(a.batch * a.seq / s)}, a.eager, a.json)
