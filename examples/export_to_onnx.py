"""Export a shielded classifier to ONNX, and run it in onnxruntime with seeds and streams of its own.

pip install "./deploy[onnx]" -c constraints.txt
python examples/export_to_onnx.py
"""

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import vqshield as vq
from vqshield.classifiers import small_cifar10
from vqshield.data import sample
from vqshield_deploy import export_onnx

images = sample(8).floats()
model = vq.defend(small_cifar10(), "swrd", size=3, seed=7)
with tempfile.TemporaryDirectory() as folder:
    written = export_onnx(model, Path(folder) / "model.onnx", shape=(3, 32, 32))
    session = onnxruntime.InferenceSession(str(written.path))
print(f"{written.nodes} operators of opset {written.opset}, {written.bytes:,} bytes")
streams = np.arange(8)  # a service draws the seed when it starts, and gives every image its own stream
(logits,) = session.run(None, {"images": images.numpy(), "seed": np.array([7]), "streams": streams})
with torch.no_grad():
    ours = model(images, streams=torch.from_numpy(streams)).numpy()
print(f"largest difference of the logits: {np.abs(logits - ours).max():.1e}")
