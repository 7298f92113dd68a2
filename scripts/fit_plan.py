#!/usr/bin/env python3
"""Fits efficiencies of a chip to published rows: scripts/fit_plan.py FILE.csv CLUSTER PART [PROGRAM]

PART is a part of the names of chips whose rows are used (A100). Keys are changed one at a time, by
steps that halve, as long as the mean over sources of the mean absolute error falls. Only rows that
`plan --published` calls fitted are looked at; errors of the others are printed at the end. The
values go into clusters/CLUSTER.yaml by hand.
"""
import collections
import csv
import json
import math
import subprocess
import sys
import tempfile

KEYS = ["chip.gemm", "chip.gemm_k", "chip.stream", "chip.attention", "chip.attention_tuned",
        "chip.gemm_fp8", "chip.launch", "chip.host", "chip.overlap"]
MOST = {"chip.gemm": 0.95, "chip.stream": 0.95, "chip.attention": 0.95, "chip.gemm_fp8": 0.95,
        "chip.attention_tuned": 0.95, "chip.gemm_k": 500}


def rows(table, program, cluster, values):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write(f"like: {cluster}\nchip:\n")
        f.writelines(f"  {k.split('.')[1]}: {v:.6g}\n" for k, v in values.items())
        f.flush()
        out = subprocess.run([program, "plan", "--published", table, "--json", "--cluster", f.name],
                             capture_output=True, text=True, check=True).stdout
    return json.loads(out)["rows"]


def error(found, names, fitted):
    by_source = collections.defaultdict(list)
    for r in found:
        if r["error"] is not None and str(r["row"]) in names and r["held_out"] != fitted:
            by_source[r["source"]].append(abs(math.log(1 + r["error"])))
    means = [sum(e) / len(e) for e in by_source.values()]
    return sum(means) / len(means) if means else math.nan


def main():
    table, cluster, part = sys.argv[1:4]
    program = sys.argv[4] if len(sys.argv) > 4 else "build/loopline"
    names = {r["id"] for r in csv.DictReader(open(table)) if part in r["gpu"]}
    values, step = {}, 0.2
    for line in open(f"clusters/{cluster}.yaml"):
        key, _, value = line.strip().partition(": ")
        if "chip." + key in KEYS:
            values["chip." + key] = float(value)
    best = error(rows(table, program, cluster, values), names, True)
    while step > 0.01:
        was = best
        for key in values:
            for factor in (1 + step, 1 / (1 + step)):
                tried = dict(values, **{key: min(values[key] * factor, MOST.get(key, 1e9))})
                e = error(rows(table, program, cluster, tried), names, True)
                if e < best:
                    best, values = e, tried
        step = step if best < was - 1e-4 else step / 2
        print(f"{best:.4f}", {k: float(f"{v:.4g}") for k, v in values.items()}, flush=True)
    found = rows(table, program, cluster, values)
    print(f"fitted {best:.4f}, not fitted {error(found, names, False):.4f}")


main()
