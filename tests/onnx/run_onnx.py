"""run_onnx.py FOLDER: FOLDER/model.onnx, run by onnxruntime on FOLDER/INPUT.bin, gives
FOLDER/want.bin. Status 77: onnxruntime is not installed."""
import sys

try:
    import numpy as np
    import onnxruntime as ort
except ImportError:
    sys.exit(77)

folder = sys.argv[1]
options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.log_severity_level = 3
session = ort.InferenceSession(f"{folder}/model.onnx", options)
feeds = {}
for i in session.get_inputs():
    kind = np.int32 if "int32" in i.type else np.float32
    shape = [-1 if d == "N" else d for d in i.shape]
    feeds[i.name] = np.fromfile(f"{folder}/{i.name}.bin", kind).reshape(shape)
have = session.run(None, feeds)[0].ravel()
want = np.fromfile(f"{folder}/want.bin", np.float32)
off = float(np.abs(have - want).max())
most = max(float(np.abs(want).max()), 1)
print(f"onnxruntime: off by {off:g} of {most:g}")
sys.exit(not (have.shape == want.shape and off <= 1e-5 * most))
