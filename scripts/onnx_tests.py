#!/usr/bin/env python3
"""Writes the tests that the Python package onnx makes into folders that loopline import --check reads:

    python3 -m venv venv && venv/bin/pip install onnx && venv/bin/python scripts/onnx_tests.py DIR

DIR/node/test_*: one op each; DIR/simple, DIR/light: small and whole models."""
import os
import shutil
import sys
import warnings

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case import node, model
from onnx.backend.test import loader


def proto(value, name, kind):
    """A test's value as the message that its type asks for."""
    if kind.HasField("sequence_type"):
        return numpy_helper.from_list(value, name)
    if kind.HasField("optional_type"):
        return numpy_helper.from_optional(value, name)
    return value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(np.asarray(value), name)


def write(case, folder):
    os.makedirs(folder, exist_ok=True)
    if case.model_dir:  # whole models: the package has them as files
        for entry in os.listdir(case.model_dir):
            source = os.path.join(case.model_dir, entry)
            (shutil.copytree if os.path.isdir(source) else shutil.copy)(source, os.path.join(folder, entry))
        return
    onnx.save(case.model, os.path.join(folder, "model.onnx"))
    for number, (inputs, outputs) in enumerate(case.data_sets):
        data = os.path.join(folder, f"test_data_set_{number}")
        os.makedirs(data, exist_ok=True)
        for values, infos, word in ((inputs, case.model.graph.input, "input"), (outputs, case.model.graph.output, "output")):
            for i, (value, info) in enumerate(zip(values, infos)):
                with open(os.path.join(data, f"{word}_{i}.pb"), "wb") as f:
                    f.write(proto(value, info.name, info.type).SerializeToString())


def write_light(path, folder):
    """A whole model: its input counts from 0 to 1, its output lies beside it."""
    data = os.path.join(folder, "test_data_set_0")
    os.makedirs(data, exist_ok=True)
    shutil.copy(path, os.path.join(folder, "model.onnx"))
    shutil.copy(path[:-5] + "_output_0.pb", os.path.join(data, "output_0.pb"))
    graph = onnx.load(path).graph
    given = {i.name for i in graph.initializer}
    for i, info in enumerate(x for x in graph.input if x.name not in given):
        shape = [d.dim_value or 1 for d in info.type.tensor_type.shape.dim]
        count = int(np.prod(shape))
        value = (np.arange(count).reshape(shape) / count).astype(np.float32)
        with open(os.path.join(data, f"input_{i}.pb"), "wb") as f:
            f.write(numpy_helper.from_array(value, info.name).SerializeToString())


def main():
    warnings.simplefilter("ignore")
    out = sys.argv[1]
    counts = {}
    cases = [("node", c) for c in node.collect_testcases(None)] + [("simple", c) for c in model.collect_testcases()]
    for kind, case in cases:
        if case.model is None:
            continue
        write(case, os.path.join(out, kind, case.name))
        counts[kind] = counts.get(kind, 0) + 1
    light = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data", "light")
    for name in sorted(os.listdir(light)) if os.path.isdir(light) else []:
        if name.endswith(".onnx"):
            write_light(os.path.join(light, name), os.path.join(out, "light", name[:-5]))
            counts["light"] = counts.get("light", 0) + 1
    print(counts)


main()
