#!/usr/bin/env python3
"""Kendall's tau within each sweep of a table of published trainings, as `loopline plan` predicts
them, and what an oracle would have: one that knows every published time but for noise.

    scripts/tau_noise.py FILE.csv [loopline]
"""
import csv
import itertools
import json
import math
import random
import subprocess
import sys

NOISE = (0.01, 0.02, 0.03, 0.05)
TIMES = 300


def tau(pairs, apart=0):
    """Of (measured, predicted); pairs of measured times that are nearer than `apart` do not count."""
    agree = n = 0
    for (a, x), (b, y) in itertools.combinations(pairs, 2):
        if a == b or abs(math.log(a / b)) < apart:
            continue
        n += 1
        agree += ((a - b) * (x - y) > 0) - ((a - b) * (x - y) < 0)
    return agree / n if n else math.nan


def main():
    file, program = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "build/loopline"
    with open(file, newline="") as f:
        refs = {r["id"]: (r["source"], r["ref"].split(" line ")[0]) for r in csv.DictReader(f)}
    out = subprocess.run([program, "plan", "--published", file, "--json"], check=True,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    sweeps = {}
    for r in json.loads(out)["rows"]:
        if r["measured"] and r["predicted"]:
            sweeps.setdefault(refs[str(r["row"])], []).append((r["measured"], r["predicted"]))
    random.seed(1)
    print("rows   tau  of pairs 1 %, 2 % apart  oracle with noise of",
          ", ".join(f"{100 * x:.0f} %" for x in NOISE))
    for (source, ref), rows in sweeps.items():
        if len(rows) < 3:
            continue
        oracle = [sum(tau([(m, m * math.exp(random.gauss(0, x))) for m, _ in rows])
                      for _ in range(TIMES)) / TIMES for x in NOISE]
        print(f"{len(rows):4d}  {tau(rows):.2f}  {tau(rows, 0.01):.2f}  {tau(rows, 0.02):.2f}  ",
              " ".join(f"{o:.2f}" for o in oracle), f" {source}: {ref}")


if __name__ == "__main__":
    main()
