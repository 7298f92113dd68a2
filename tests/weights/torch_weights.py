"""Models of torchvision and transformers with random weights, for test_torch.c.

write FOLDER: weights, an input and PyTorch's logits of each; check FOLDER: what was exported is
loaded there, with no key missing or left over, and holds the same numbers. Exits with 77 where a
library is not installed.
"""
import os
import sys

try:
    import numpy
    import safetensors.torch
    import torch
    import torchvision
    import transformers
except ImportError as why:
    print(why)
    sys.exit(77)

torch.manual_seed(7)
torch.set_num_threads(2)


def image(name, **more):
    return getattr(torchvision.models, name)(weights=None, **more).eval()


def gpt():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_embd=48, n_head=4, vocab_size=97, n_positions=16, bos_token_id=0, eos_token_id=0)).eval()


MODELS = {
    "resnet18": (lambda: image("resnet18"), 64),
    "resnet50": (lambda: image("resnet50"), 64),
    "alexnet": (lambda: image("alexnet"), 224),
    "googlenet": (lambda: image("googlenet", init_weights=False), 64),
    "mobilenetv2": (lambda: image("mobilenet_v2"), 64),
    "squeezenet": (lambda: image("squeezenet1_1"), 64),
    "vgg16": (lambda: image("vgg16"), 64),
    "gpt": (gpt, 0),
}


def randomise(m):
    """Nothing that a map could lose is 0 or 1."""
    with torch.no_grad():
        for name, t in m.state_dict().items():
            if name.endswith("running_var"):
                t.uniform_(0.5, 1.5)
            elif t.dim() == 1 and t.is_floating_point():
                t.add_(torch.randn_like(t) * 0.1)
            if name.endswith(("bn2.weight", "bn3.weight")):  # a residual branch's last: logits stay small
                t.mul_(0.2)


def logits(m, side, x):
    with torch.no_grad():
        if side:
            return m(torch.from_numpy(x).permute(0, 3, 1, 2))
        return m(torch.from_numpy(x).long()).logits


def write(folder):
    for name, (make, side) in MODELS.items():
        m = make()
        randomise(m)
        if side:
            x = torch.randn(2, side, side, 3).numpy()
        else:
            x = torch.randint(0, 97, (2, 16)).numpy().astype(numpy.int32)
        x.tofile(f"{folder}/{name}.x")
        logits(m, side, x).numpy().tofile(f"{folder}/{name}.logits")
        if name == "resnet18":  # strides, a wrapper and a prefix
            m = m.to(memory_format=torch.channels_last)
            state = {"module." + k: v for k, v in m.state_dict().items()}
            torch.save({"epoch": 3, "best": torch.tensor(0.5), "state_dict": state,
                        "optimizer": torch.optim.SGD(m.parameters(), 0.1).state_dict()}, f"{folder}/{name}.weights")
        elif name == "gpt":
            m.save_pretrained(f"{folder}/hf")
            os.rename(f"{folder}/hf/model.safetensors", f"{folder}/{name}.weights")
            torch.save(m.state_dict(), f"{folder}/{name}.pth")
        elif name == "resnet50":
            safetensors.torch.save_file(m.state_dict(), f"{folder}/{name}.weights")
        else:
            torch.save(m.state_dict(), f"{folder}/{name}.weights")


def check(folder):
    for name, (make, side) in MODELS.items():
        state = safetensors.torch.load_file(f"{folder}/{name}.out")
        m = make()
        if name == "googlenet":
            m.aux_logits, m.aux1, m.aux2 = False, None, None
        m.load_state_dict(state, strict=True)
        x = numpy.fromfile(f"{folder}/{name}.x", numpy.float32 if side else numpy.int32)
        x = x.reshape(2, side, side, 3) if side else x.reshape(2, 16)
        want = numpy.fromfile(f"{folder}/{name}.logits", numpy.float32)
        have = logits(m, side, x).numpy().ravel()
        off = abs(have - want).max()
        print(f"{name}: {len(state)} tensors, logits differ by {off:.2g}")
        if not off <= 1e-5:
            sys.exit(1)


{"write": write, "check": check}[sys.argv[1]](sys.argv[2])
