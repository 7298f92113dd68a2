#!/usr/bin/env python3
"""Holds Loopline's ops against PyTorch's own samples (OpInfo): values, and gradients of their sum by
random weights. Ops are called as C's are, through the shared library.

    scripts/opinfo.py [build/libloopline.so] [--only NAME] [--samples N]

Prints a row an op: samples that passed, those with options that Loopline does not have (by reason),
those that failed. Exits with 1 where one failed, with 77 where torch (with expecttest) is missing.
"""
import argparse
import ctypes as C
import math
import sys
import warnings
from collections import Counter

warnings.simplefilter("ignore")
try:
    import numpy as np
    import torch
    from torch.testing._internal.common_methods_invocations import op_db
except ImportError as why:
    print(f"skipped: {why}")
    sys.exit(77)

F32, I32 = 1, 4  # of ll_dtype


class Val(C.Structure):
    _fields_ = [("id", C.c_int32)]


class Shape(C.Structure):
    _fields_ = [("n", C.c_int), ("d", C.c_int64 * 6)]


class Init(C.Structure):
    _fields_ = [("kind", C.c_int), ("a", C.c_double), ("data", C.c_void_p)]


class Conv(C.Structure):
    _fields_ = [("stride", C.c_int64 * 3), ("pad", C.c_int64 * 3), ("dilation", C.c_int64 * 3),
                ("groups", C.c_int64), ("pad_more", C.c_int64 * 3)]


class Window(C.Structure):
    _fields_ = [("size", C.c_int64 * 3), ("stride", C.c_int64 * 3), ("pad", C.c_int64 * 3),
                ("ceil", C.c_bool), ("skip_pad", C.c_bool), ("pad_more", C.c_int64 * 3),
                ("dilation", C.c_int64 * 3)]


class Resize(C.Structure):
    _fields_ = [("mode", C.c_int), ("coords", C.c_int), ("round", C.c_int), ("size", C.c_int64 * 3),
                ("scale", C.c_double * 3), ("cubic", C.c_double)]


class Attend(C.Structure):
    _fields_ = [("causal", C.c_int), ("mask", Val), ("scale", C.c_double)]


class Classes(C.Structure):
    _fields_ = [("smoothing", C.c_double), ("weight", Val)]


class SessionOpts(C.Structure):  # its first fields; the rest is zero
    _fields_ = [("machine", C.c_char_p), ("threads", C.c_int), ("rest", C.c_char * 512)]


class Skip(Exception):
    pass


def shape(dims):
    if len(dims) > 6:
        raise Skip("more than 6 dimensions")
    return Shape(len(dims), (C.c_int64 * 6)(*dims))


def three(x, n, default=0):
    """A number or a tuple for each of n spatial dimensions."""
    if x is None or (isinstance(x, (tuple, list)) and not len(x)):
        x = default
    x = [x] * n if isinstance(x, (int, float)) else (list(x) * n if len(x) == 1 else list(x))
    return x + [0] * (3 - len(x))


class Graph:
    """A graph under construction: g.relu(x) is ll_relu(g, x)."""

    def __init__(self, lib):
        self.lib, self.inputs = lib, {}
        self.g = C.c_void_p(lib.ll_graph_new(b"op"))

    def __getattr__(self, name):
        f = getattr(self.lib, "ll_" + name)
        f.restype = Val

        def call(*args):
            return f(self.g, *[self.word(a) for a in args])
        return call

    def word(self, a):
        if isinstance(a, float):
            return C.c_double(a)
        if isinstance(a, bool):
            return C.c_bool(a)
        if isinstance(a, int):
            return C.c_int64(a)
        if isinstance(a, str):
            return a.encode()
        if isinstance(a, C.Structure) and isinstance(a, (Conv, Window, Resize, Attend, Classes)):
            return C.byref(a)
        return a

    def tensor(self, t):
        """A tensor of a sample: a parameter, or, of whole numbers, a constant."""
        if isinstance(t, (int, float, bool)):
            return self.fill(C.c_int(F32), shape([]), float(t))
        if t.is_complex() or t.dtype not in (torch.float32, torch.int64, torch.bool, torch.int32, torch.uint8):
            raise Skip(f"type {t.dtype}")
        if not t.is_floating_point():
            a = np.array(t.numpy(), np.int32, order="C")
            return self.constant(C.c_int(I32), shape(a.shape), a.ctypes.data_as(C.c_void_p))
        for key, (v, old) in self.inputs.items():
            if old is t:
                return v
        name = f"x{len(self.inputs)}"
        v = self.param(name, shape(t.shape), Init(0, 0, None))
        self.inputs[name] = (v, t)
        return v

    def dims(self, v):
        self.lib.ll_graph_shape.restype = Shape
        s = self.lib.ll_graph_shape(self.g, v)
        return list(s.d[:s.n])

    def to_last(self, v):
        """[n,c,...] -> [n,...,c]; one without n gets it."""
        n = len(self.dims(v))
        return self.transpose(v, {3: "ncl->nlc", 4: "nchw->nhwc", 5: "ncdhw->ndhwc"}[n])

    def to_second(self, v):
        n = len(self.dims(v))
        return self.transpose(v, {2: "nc->nc", 3: "nlc->ncl", 4: "nhwc->nchw", 5: "ndhwc->ncdhw"}[n])

    def transposed(self, v, order):
        letters = "abcdef"[:len(order)]
        return self.transpose(v, letters + "->" + "".join(letters[i] for i in order))

    def run(self, out):
        """Values of out, and gradients of its sum by weights with each input."""
        lib, weight = self.lib, None
        dims = self.dims(out)
        lib.ll_graph_dtype.restype = C.c_int
        real = lib.ll_graph_dtype(self.g, out) == F32
        self.result("y", out)
        grads = []
        if real and self.inputs:
            rng = np.random.default_rng(5)
            weight = rng.standard_normal(dims).astype(np.float32)
            w = self.constant(C.c_int(F32), shape(dims), weight.ctypes.data_as(C.c_void_p))
            xs = (Val * len(self.inputs))(*[v for v, _ in self.inputs.values()])
            dx = (Val * len(self.inputs))()
            self.lib.ll_grad(self.g, self.mul(out, w), xs, len(self.inputs), dx)
            for name, d in zip(self.inputs, dx):
                self.result("d" + name, d)
        self.must(lib.ll_graph_check(self.g))
        s, opts = C.c_void_p(), SessionOpts(b"cpu", 2)
        self.must(lib.ll_session_open(self.g, C.byref(opts), C.byref(s)))
        try:
            for name, (_, t) in self.inputs.items():
                a = np.array(t.detach().numpy(), order="C")
                self.must(lib.ll_session_set(s, name.encode(), 0, a.ctypes.data_as(C.c_void_p), C.c_size_t(a.nbytes)))
            lib.ll_session_run.argtypes = [C.c_void_p, C.c_double]
            self.must(lib.ll_session_run(s, 0.0))
            y = self.get(s, "y", dims, np.float32 if real else np.int32)
            if weight is not None:
                grads = [self.get(s, "d" + n, list(t.shape), np.float32) for n, (_, t) in self.inputs.items()]
        finally:
            lib.ll_session_close(s)
        return y, weight, grads

    def result(self, name, v):
        self.lib.ll_graph_result(self.g, name.encode(), v)

    def get(self, s, name, dims, dtype):
        a = np.full(dims, 77, dtype)
        self.must(self.lib.ll_session_get(s, name.encode(), a.ctypes.data_as(C.c_void_p), C.c_size_t(a.nbytes)))
        return a

    def must(self, rc):
        if rc:
            self.lib.ll_error_text.restype = C.c_char_p
            raise RuntimeError(self.lib.ll_error_text().decode())


# ---- the ops: name of the OpInfo, (graph, sample, tensor...) -> value ----

def unary(name):
    return lambda g, s, x: getattr(g, name)(x)


def binary(name):
    def build(g, s, a):
        need(s, rounding_mode=None, alpha=None)
        return getattr(g, name)(a, g.tensor(s.args[0] if s.args else s.kwargs["other"]))
    return build


def need(s, **options):
    """Options that must be absent, or as given."""
    for k, v in options.items():
        if k in s.kwargs and s.kwargs[k] is not v and s.kwargs[k] != v:
            raise Skip(k)


def arg(s, i, name, default=None):
    return s.args[i] if len(s.args) > i else s.kwargs.get(name, default)


def reduced(name):
    def build(g, s, x):
        need(s, dtype=None, out=None)
        n = len(g.dims(x))
        dim = arg(s, 0, "dim")
        dim = list(range(n)) if dim is None or dim == () or dim == [] else [dim] if isinstance(dim, int) else list(dim)
        dim = [d % n if n else 0 for d in dim]
        letters = "abcdef"[:n]
        kept = "".join(c for i, c in enumerate(letters) if i not in dim)
        y = getattr(g, name)(x, f"{letters}->{kept}") if n else x
        if arg(s, 1, "keepdim", False):
            y = g.reshape(y, shape([1 if i in dim else d for i, d in enumerate(g.dims(x))]))
        return y
    return build


def along(name, *more):
    def build(g, s, x):
        need(s, dtype=None)
        n = len(g.dims(x))
        if not n:
            raise Skip("a scalar")
        return getattr(g, name)(x, C.c_int(arg(s, 0, "dim") % n), *more)
    return build


def arg_of(name):
    def build(g, s, x):
        n, dim, keep = len(g.dims(x)), arg(s, 0, "dim"), arg(s, 1, "keepdim", False)
        if not n:
            raise Skip("a scalar")
        dims = g.dims(x)
        if dim is None:
            y = getattr(g, name)(g.reshape(x, shape([-1])), C.c_int(0))
            return g.reshape(y, shape([1] * n)) if keep else y
        y = getattr(g, name)(x, C.c_int(dim % n))
        return g.reshape(y, shape([1 if i == dim % n else d for i, d in enumerate(dims)])) if keep else y
    return build


def last(g, x, dim, f):
    """f along dimension dim, of an op that goes along the last."""
    n = len(g.dims(x))
    if not n:
        raise Skip("a scalar")
    order = [i for i in range(n) if i != dim % n] + [dim % n]
    back = sorted(range(n), key=lambda i: order[i])
    return g.transposed(f(g.transposed(x, order)), back)


def sort(g, s, x):
    return last(g, x, arg(s, 0, "dim", -1), lambda v: g.sort(v, bool(arg(s, 1, "descending", False)), C.c_void_p()))


def topk(g, s, x):
    if arg(s, 2, "largest", True) is not True or arg(s, 3, "sorted", True) is not True:
        raise Skip("smallest, or unsorted")
    return last(g, x, arg(s, 1, "dim", -1), lambda v: g.top_k(v, int(arg(s, 0, "k")), C.c_void_p()))


def clamp(g, s, x):
    low, high = arg(s, 0, "min"), arg(s, 1, "max")
    if isinstance(low, torch.Tensor) or isinstance(high, torch.Tensor):
        if low is not None:
            x = g.max(x, g.cast(g.tensor(low), C.c_int(F32)))
        return g.min(x, g.cast(g.tensor(high), C.c_int(F32))) if high is not None else x
    return g.clamp(x, float(-math.inf if low is None else low), float(math.inf if high is None else high))


def where(g, s, a):
    return g.select(g.cast(g.tensor(s.args[0]), C.c_int(F32)), a, g.tensor(s.args[1]))


def gather(g, s, x):
    n = len(g.dims(x))
    index = s.args[1]
    if not n or index.dim() != n or any(i != d for k, (i, d) in enumerate(zip(index.shape, g.dims(x)))
                                             if k != s.args[0] % n):
        raise Skip("an index of fewer rows than the tensor")
    return g.gather_elements(x, g.tensor(index), C.c_int(s.args[0] % n))


def index_select(g, s, x):
    if not len(g.dims(x)) or s.args[1].dim() != 1:
        raise Skip("a scalar")
    return g.gather(x, g.tensor(s.args[1]), C.c_int(s.args[0] % len(g.dims(x))))


def cat(g, s, x):
    vals = [g.tensor(t) for t in s.input]
    if any(t.dim() != s.input[0].dim() for t in s.input):
        raise Skip("operands of other numbers of dimensions")
    return g.concat((Val * len(vals))(*vals), C.c_int(len(vals)), C.c_int(arg(s, 0, "dim", 0) % s.input[0].dim()))


def einsum(spec):
    return lambda g, s, a: g.matmul(spec, a, g.tensor(s.args[0]))


def matmul(g, s, a):
    b = g.tensor(s.args[0])
    m, n = len(g.dims(a)), len(g.dims(b))
    batch = "abc"
    if m > 2 and n > 2 and g.dims(a)[:-2] != g.dims(b)[:-2] or abs(m - n) and m > 2 and n > 2:
        raise Skip("broadcast batches")
    left = (batch[:m - 2] if m > 2 else "") + ("m" if m > 1 else "") + "k"
    right = (batch[:n - 2] if n > 2 else "") + "k" + ("n" if n > 1 else "")
    out = (batch[:max(m, n, 2) - 2]) + ("m" if m > 1 else "") + ("n" if n > 1 else "")
    return g.matmul(f"{left},{right}->{out}", a, b)


def linear(g, s, x):
    w, b = s.args[0], arg(s, 1, "bias")
    n = len(g.dims(x))
    if w.dim() != 2:
        raise Skip("a weight of one dimension")
    y = g.matmul("abcde"[:n - 1] + "k,nk->" + "abcde"[:n - 1] + "n", x, g.tensor(w))
    return g.add(y, g.tensor(b)) if b is not None else y


def conv(n, transpose=False):
    def build(g, s, x):
        names = ["weight", "bias", "stride", "padding"] + (["output_padding", "groups", "dilation"] if transpose
                                                           else ["dilation", "groups"])
        a = {k: arg(s, i, k) for i, k in enumerate(names)}
        if len(g.dims(x)) != n + 2:
            raise Skip("without a batch")
        o = Conv(groups=a["groups"] or 1)
        w = g.tensor(a["weight"])
        o.dilation[:] = three(a["dilation"], n, 1)
        if a["padding"] == "same":
            for i, d in enumerate(a["weight"].shape[2:]):
                all_ = o.dilation[i] * (d - 1)
                o.pad[i], o.pad_more[i] = all_ // 2, all_ - 2 * (all_ // 2)
        elif a["padding"] != "valid":
            o.pad[:] = three(a["padding"], n)
        o.stride[:] = three(a["stride"], n, 1)
        x, w = g.to_last(x), g.to_last(w)
        if transpose:
            pad = (C.c_int64 * 3)(*three(a["output_padding"], n))
            y = g.conv_transpose(x, w, o, pad)
        else:
            y = getattr(g, f"conv{n}d")(x, w, o)
        if a["bias"] is not None:
            y = g.add(y, g.tensor(a["bias"]))
        return g.to_second(y)
    return build


def pool(n, kind):
    def build(g, s, x):
        if kind == "max":
            names = ["kernel_size", "stride", "padding", "dilation", "ceil_mode"]
        else:
            names = ["kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"]
        a = {k: arg(s, i, k) for i, k in enumerate(names)}
        if len(g.dims(x)) != n + 2:
            raise Skip("without a batch")
        if a.get("divisor_override") is not None:
            raise Skip("divisor_override")
        w = Window(ceil=bool(a["ceil_mode"]))
        w.size[:], w.stride[:], w.pad[:] = three(a["kernel_size"], n), three(a["stride"], n), three(a["padding"], n)
        w.dilation[:] = three(a.get("dilation"), n, 1)
        w.skip_pad = a.get("count_include_pad") is False
        return g.to_second(getattr(g, kind + "_pool")(g.to_last(x), w))
    return build


def adaptive(g, s, x):
    out = s.args[0]
    out = (out, out) if isinstance(out, int) else out
    if len(g.dims(x)) != 4:
        raise Skip("without a batch")
    out = [d if o is None else o for o, d in zip(out, g.dims(x)[2:])]
    return g.to_second(g.adaptive_avg_pool(g.to_last(x), out[0], out[1]))


def resize(g, s, x):
    a = {k: arg(s, i, k) for i, k in enumerate(["size", "scale_factor", "mode", "align_corners", "recompute_scale_factor",
                                                "antialias"])}
    n = len(g.dims(x)) - 2
    modes = {"nearest": 0, "nearest-exact": 0, "linear": 1, "bilinear": 1, "trilinear": 1, "bicubic": 2, None: 0}
    if a["mode"] not in modes or a["antialias"] or a["recompute_scale_factor"]:
        raise Skip("an option of its own")
    if a["mode"] == "bicubic" and n != 2:
        raise Skip("cubic in other than two dimensions")
    r = Resize(mode=modes[a["mode"]])
    r.coords = 1 if a["align_corners"] else 2 if a["mode"] in (None, "nearest") else 0
    if a["mode"] == "nearest-exact":
        r.round = 3
    if a["size"] is not None:
        r.size[:] = three(a["size"], n)
    if a["scale_factor"] is not None:
        r.scale[:] = [float(v) for v in three(a["scale_factor"], n)]
        if r.coords == 1:
            r.size[:] = [int(math.floor(d * f)) for d, f in zip(g.dims(x)[2:], r.scale[:n])] + [0] * (3 - n)
            r.scale[:] = [0, 0, 0]
    return g.to_second(g.resize_image(g.to_last(x), r))


def pad(g, s, x):
    if arg(s, 1, "mode", "constant") != "constant":
        raise Skip("not by a constant")
    p, value, n = list(s.args[0]), arg(s, 2, "value"), len(g.dims(x))
    if value or any(v < 0 for v in p):
        raise Skip("by other than zeros")
    for i in range(len(p) // 2):
        x = g.pad(x, C.c_int(n - 1 - i), p[2 * i], p[2 * i + 1])
    return x


def layer_norm(g, s, x):
    shape_, w, b = s.args[0], arg(s, 1, "weight"), arg(s, 2, "bias")
    if len(shape_) != 1 or w is None or b is None:
        raise Skip("over several dimensions, or without weights")
    if shape_[0] == 1:
        raise Skip("a row of one number: its gradient is rounding")
    return g.layernorm(x, g.tensor(w), g.tensor(b), float(s.kwargs.get("eps", 1e-5)))


def rms_norm(g, s, x):
    if len(s.args[0]) != 1 or arg(s, 1, "weight") is None or s.kwargs.get("eps") is None:
        raise Skip("over several dimensions, without weights, or an eps by its type")
    return g.rmsnorm(x, g.tensor(arg(s, 1, "weight")), float(s.kwargs["eps"]))


def some(g, t):
    return Val(0) if t is None else g.tensor(t)


def group_norm(g, s, x):
    if len(g.dims(x)) not in (3, 4, 5):
        raise Skip("no spatial dimensions")
    return g.to_second(g.group_norm(g.to_last(x), int(s.args[0]), some(g, arg(s, 1, "weight")), some(g, arg(s, 2, "bias")),
                                    float(arg(s, 3, "eps", 1e-5))))


def instance_norm(g, s, x):
    if arg(s, 4, "use_input_stats", True) is not True or len(g.dims(x)) not in (3, 4, 5):
        raise Skip("by running statistics")
    return g.to_second(g.instance_norm(g.to_last(x), some(g, arg(s, 2, "weight")), some(g, arg(s, 3, "bias")),
                                       float(arg(s, 6, "eps", 1e-5))))


def lrn(g, s, x):
    a = [arg(s, i, k, d) for i, (k, d) in enumerate([("size", None), ("alpha", 1e-4), ("beta", 0.75), ("k", 1.0)])]
    return g.to_second(g.local_response_norm(g.to_last(x), int(a[0]), float(a[1]), float(a[2]), float(a[3])))


def embedding(g, s, x):
    need(s, max_norm=None, padding_idx=None, scale_grad_by_freq=False, sparse=False)
    return g.embedding(g.tensor(s.args[0]), x) if not s.input.is_floating_point() else g.embedding(x, g.tensor(s.args[0]))


def reduce(g, s, y):
    how = s.kwargs.get("reduction", "mean")
    return y if how == "none" else g.sum_all(y) if how == "sum" else g.mean(y)


def loss(name, *options):
    def build(g, s, x):
        need(s, weight=None, size_average=None, reduce=None)
        more = [float(s.kwargs.get(k, d)) for k, d in options]
        return reduce(g, s, getattr(g, name)(x, g.tensor(arg(s, 0, "target")), *more))
    return build


def bce(g, s, x):
    need(s, weight=None)
    if len(s.args) > 1 and s.args[1] is not None:
        raise Skip("weight")
    return reduce(g, s, g.bce_logits(x, g.tensor(s.args[0]), some(g, s.kwargs.get("pos_weight"))))


def kl_div(g, s, x):
    if s.kwargs.get("reduction") == "batchmean" or s.kwargs.get("log_target"):
        raise Skip("batchmean or log_target")
    return reduce(g, s, g.kl_div(x, g.tensor(s.args[0])))


def cross_entropy(g, s, x):
    need(s, ignore_index=-100)
    t, w, smooth = arg(s, 0, "target"), s.kwargs.get("weight"), s.kwargs.get("label_smoothing", 0.0)
    if t.is_floating_point() or s.kwargs.get("reduction", "mean") != "mean" or t.numel() == 0:
        raise Skip("probabilities, or no mean")
    n = len(g.dims(x))
    x = x if n <= 2 else g.to_last(x)
    return g.cross_entropy_mean(x, g.tensor(t), Classes(float(smooth), some(g, w)))


def nll(g, s, x):
    need(s, ignore_index=-100, weight=None)
    if len(g.dims(x)) < 1 or (len(s.args) > 1):
        raise Skip("weight")
    x = x if len(g.dims(x)) <= 2 else g.to_last(x)
    return reduce(g, s, g.nll(x, g.tensor(s.args[0])))


def cosine(g, s, x):
    b = s.args[0]
    if arg(s, 1, "dim", 1) not in (-1, len(g.dims(x)) - 1) or b.shape != s.input.shape:
        raise Skip("not along the last dimension")
    return g.cosine_similarity(x, g.tensor(b), float(arg(s, 2, "eps", 1e-8)))


def attention(g, s, q):
    k, v = s.args[0], s.args[1]
    need(s, dropout_p=0.0, enable_gqa=False)
    if s.input.dim() != 4 or k.dim() != 4:
        raise Skip("not [b,h,t,d]")
    mask = s.kwargs.get("attn_mask")
    o = Attend(causal=1 if s.kwargs.get("is_causal") else 0, mask=some(g, mask))
    y = g.attend(*[g.transpose(t, "bhtd->bthd") for t in (q, g.tensor(k), g.tensor(v))], o)
    return g.transpose(y, "bthd->bhtd")


def shuffle(name):
    def build(g, s, x):
        if len(g.dims(x)) != 4:
            raise Skip("not [n,c,h,w]")
        return g.to_second(getattr(g, name)(g.to_last(x), int(arg(s, 0, "upscale_factor", s.kwargs.get("downscale_factor"))), True))
    return build


def one_hot(g, s, x):
    if s.input.numel() == 0:
        raise Skip("nothing")
    x, n = g.tensor(s.input.long()), arg(s, 0, "num_classes", -1)
    n = int(s.input.max()) + 1 if n == -1 else n
    return g.cast(g.one_hot(x, int(n), C.c_int(F32)), C.c_int(I32))


def batch_norm(g, s, x):
    class Norm(C.Structure):
        _fields_ = [("gain", Val), ("bias", Val), ("mean", Val), ("var", Val), ("eps", C.c_double),
                    ("momentum", C.c_double), ("training", C.c_bool)]
    mean, var = s.args[0], s.args[1]
    if arg(s, 4, "training", False) or None in (mean, var, arg(s, 2, "weight"), arg(s, 3, "bias")):
        raise Skip("in training, or without weights")
    n = Norm(g.tensor(arg(s, 2, "weight")), g.tensor(arg(s, 3, "bias")), g.tensor(mean), g.tensor(var),
             float(arg(s, 6, "eps", 1e-5)), 0.1, False)
    last_ = len(g.dims(x)) > 2
    y = g.batchnorm(g.to_last(x) if last_ else x, C.byref(n))
    return g.to_second(y) if last_ else y


def gelu(g, s, x):
    return g.gelu(x) if s.kwargs.get("approximate") == "tanh" else g.gelu_erf(x)


def with_number(name, key, default):
    def build(g, s, x):
        v = arg(s, 0, key, default)
        return getattr(g, name)(x, float(v))
    return build


def elu(g, s, x):
    if s.kwargs.get("scale", 1) != 1 or s.kwargs.get("input_scale", 1) != 1 or len(s.args) > 1:
        raise Skip("scales")
    return g.elu(x, float(arg(s, 0, "alpha", 1.0)))


def softplus(g, s, x):
    if arg(s, 0, "beta", 1) != 1 or arg(s, 1, "threshold", 20) != 20:
        raise Skip("beta or threshold")
    return g.softplus(x)


def prelu(g, s, x):
    w = arg(s, 0, "weight")
    if w.numel() == 1:
        return g.prelu(x, g.reshape(g.tensor(w), shape([1] * len(g.dims(x)))))
    dims = [w.numel() if i == 1 else 1 for i in range(len(g.dims(x)))]
    return g.prelu(x, g.reshape(g.tensor(w), shape(dims)))


def permute(g, s, x):
    order = [d % len(g.dims(x)) for d in s.args[0]] if g.dims(x) else []
    if not order:
        raise Skip("a scalar")
    return g.transposed(x, order)


def reshape(g, s, x):
    to = s.args[0]
    return g.reshape(x, shape(list(to)))


def flip(g, s, x):
    if not g.dims(x):
        raise Skip("a scalar")
    for d in arg(s, 0, "dims"):
        x = g.flip(x, C.c_int(d % len(g.dims(x))))
    return x


def narrow(g, s, x):
    dim, start, length = s.args
    if isinstance(start, torch.Tensor):
        start = int(start)
    n = g.dims(x)
    start = start + n[dim] if start < 0 else start
    return g.slice(x, C.c_int(dim % len(n)), int(start), int(start + length))


def roundings(g, s, x):
    if s.kwargs.get("decimals"):
        raise Skip("decimals")
    return g.round(x)


OPS = {n: unary(n) for n in """abs neg exp log sqrt rsqrt tanh sigmoid sin cos tan asin acos atan sinh cosh asinh acosh atanh
    erf log1p expm1 floor ceil sign reciprocal square isnan isinf""".split()}
OPS |= {"nn.functional." + n: unary(ours) for n, ours in {
    "relu": "relu", "silu": "silu", "mish": "mish", "selu": "selu", "hardswish": "hard_swish",
    "hardsigmoid": "hard_sigmoid", "logsigmoid": "log_sigmoid"}.items()}
UNARY = set(OPS)
OPS |= {n: binary(ours) for n, ours in {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "maximum": "max", "minimum": "min", "pow": "pow",
    "remainder": "mod", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "logical_and": "and", "logical_or": "or", "logical_xor": "xor"}.items()}
OPS |= {n: reduced(ours) for n, ours in {"sum": "sum", "mean": "mean_over", "amax": "amax", "amin": "amin",
                                         "logsumexp": "logsumexp"}.items()}
OPS |= {"round": roundings, "logical_not": unary("not"), "clamp": clamp, "where": where, "cumsum": along("cumsum", False, False),
        "softmax": along("softmax_over"), "log_softmax": along("log_softmax"), "sort": sort, "topk": topk,
        "argmax": arg_of("argmax"), "argmin": arg_of("argmin"), "gather": gather, "index_select": index_select,
        "cat": cat, "bmm": einsum("bmk,bkn->bmn"), "mm": einsum("mk,kn->mn"), "mv": einsum("mk,k->m"), "matmul": matmul,
        "permute": permute, "reshape": reshape, "flip": flip, "narrow": narrow}
OPS |= {"nn.functional." + k: v for k, v in {
    "linear": linear, "conv1d": conv(1), "conv2d": conv(2), "conv3d": conv(3), "conv_transpose1d": conv(1, True),
    "conv_transpose2d": conv(2, True), "conv_transpose3d": conv(3, True), "max_pool1d": pool(1, "max"),
    "max_pool2d": pool(2, "max"), "max_pool3d": pool(3, "max"), "avg_pool1d": pool(1, "avg"), "avg_pool2d": pool(2, "avg"),
    "avg_pool3d": pool(3, "avg"), "adaptive_avg_pool2d": adaptive, "interpolate": resize, "pad": pad,
    "layer_norm": layer_norm, "rms_norm": rms_norm, "group_norm": group_norm, "instance_norm": instance_norm,
    "local_response_norm": lrn, "batch_norm": batch_norm, "embedding": embedding, "cross_entropy": cross_entropy,
    "nll_loss": nll, "mse_loss": loss("mse"), "l1_loss": loss("l1"), "huber_loss": loss("huber", ("delta", 1.0)),
    "smooth_l1_loss": loss("smooth_l1", ("beta", 1.0)), "binary_cross_entropy_with_logits": bce, "kl_div": kl_div,
    "cosine_similarity": cosine, "scaled_dot_product_attention": attention, "pixel_shuffle": shuffle("depth_to_space"),
    "pixel_unshuffle": shuffle("space_to_depth"), "one_hot": one_hot, "gelu": gelu, "elu": elu,
    "leaky_relu": with_number("leaky_relu", "negative_slope", 0.01), "celu": with_number("celu", "alpha", 1.0),
    "softplus": softplus, "prelu": prelu}.items()}

SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, -2.0, 3.0, 1e30, -1e-30])


def extra(info):
    """Samples with numbers that are none, of ops of one or two operands."""
    S = type("S", (), {})

    def sample(*tensors):
        s = S()
        s.input, s.args, s.kwargs = tensors[0], tensors[1:], {}
        return s
    name = info.name.split(".")[-1]
    if name == "sign":  # PyTorch has 0 for NaN, NumPy and Loopline NaN
        return []
    if name in ("maximum", "minimum", "add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge"):
        return [sample(SPECIAL.repeat(10), SPECIAL.repeat_interleave(10))]
    if info.name in UNARY:
        return [sample(SPECIAL.clone())]
    if name in ("amax", "amin"):
        s = sample(SPECIAL.clone())
        s.kwargs = {"dim": 0}
        return [s]
    if name == "clamp":
        s = sample(SPECIAL.clone())
        s.kwargs = {"min": -1.0, "max": 1.0}
        return [s]
    return []


def off(have, want):
    """The largest difference, in units of what is allowed."""
    have, want = np.asarray(have, np.float64), np.asarray(want, np.float64)
    if have.shape != want.shape:
        raise RuntimeError(f"shape {have.shape}, wanted {want.shape}")
    most = max(1.0, np.abs(want[np.isfinite(want)]).max(initial=0))
    same = (have == want) | (np.isnan(have) & np.isnan(want))
    with np.errstate(invalid="ignore", over="ignore"):
        d = np.where(same, 0, np.abs(have - want) / (1e-5 * most + 1e-4 * np.abs(want)))
    d = np.where(np.isnan(d), np.inf, d)
    return float(d.max()) if d.size else 0.0


def one(lib, info, s, grads):
    g = Graph(lib)
    try:
        first = s.input if isinstance(s.input, torch.Tensor) else None
        y, weight, dx = g.run(OPS[info.name](g, s, g.tensor(first) if first is not None else None))
        for t in [t for _, t in g.inputs.values()]:
            t.requires_grad_(True)
            t.grad = None
        try:
            want = info.op(s.input, *s.args, **s.kwargs)
        except RuntimeError as problem:  # running statistics, weights of classes
            if "not differentiable" not in str(problem):
                raise
            for t in [t for _, t in g.inputs.values() if t is not first]:
                t.requires_grad_(False)
            want = info.op(s.input, *s.args, **s.kwargs)
        want = want[0] if isinstance(want, (tuple, list)) or type(want).__module__ == "torch.return_types" else want
        d = off(y, want.detach().numpy().astype(y.dtype))
        if d > 1:
            return f"values differ by {d:.3g} times what is allowed"
        if grads and weight is not None and want.requires_grad and want.is_floating_point():
            (want * torch.from_numpy(weight)).sum().backward()
            for (name, (_, t)), mine in zip(g.inputs.items(), dx):
                if not t.requires_grad:
                    continue
                d = off(mine, t.grad.numpy() if t.grad is not None else np.zeros(t.shape))
                if d > 1:
                    return f"gradient of {name} differs by {d:.3g} times what is allowed"
        return None
    finally:
        lib.ll_graph_free(g.g)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("library", nargs="?", default="build/libloopline.so")
    p.add_argument("--only")
    p.add_argument("--samples", type=int, default=40)
    o = p.parse_args()
    lib = C.CDLL(o.library)
    lib.ll_graph_new.restype = C.c_void_p
    torch.manual_seed(1)
    table, failed, seen = [], [], set()
    for info in op_db:
        variant = info.variant_test_name
        if info.name not in OPS or (o.only and o.only != info.name) or variant not in ("", "nearest", "bilinear"):
            continue
        if (info.name, variant) in seen:
            continue
        seen.add((info.name, variant))
        passed, skipped, why = 0, Counter(), []
        dtype = torch.float32 if torch.float32 in info.dtypes else torch.int64
        samples = list(info.sample_inputs("cpu", dtype, requires_grad=False))[:o.samples]
        for k, s in enumerate(samples + extra(info)):
            grads = info.supports_autograd and k < len(samples)
            try:
                bad = one(lib, info, s, grads)
                if bad:
                    why.append(f"sample {k}: {bad}")
                else:
                    passed += 1
            except Skip as reason:
                skipped[str(reason)] += 1
            except Exception as problem:
                why.append(f"sample {k}: {type(problem).__name__} {problem}")
        table.append((f"{info.name} {variant}".strip(), passed, skipped, why))
    for name, passed, skipped, why in sorted(table):
        notes = "; ".join(f"{n} {r}" for r, n in skipped.items())
        print(f"{name:48} {passed:3} passed {sum(skipped.values()):3} not taken {len(why):3} failed  {notes}")
        for w in why[:3]:
            print(f"    {w}")
    ok = sum(1 for _, p_, _, why in table if p_ and not why)
    bad = [n for n, _, _, why in table if why]
    print(f"{ok} ops agree on {sum(p_ for _, p_, _, _ in table)} samples, {len(bad)} differ"
          f"{': ' + ', '.join(bad) if bad else ''}; torch {torch.__version__}")
    return 1 if bad or not ok else 0


sys.exit(main())
