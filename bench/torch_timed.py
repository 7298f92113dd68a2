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
