"""Shield the images of a data set by a transform of torchvision; labels and boxes stay as they are.

pip install ".[torchvision]" -c constraints.txt
python examples/shield_with_torchvision.py
"""

import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from vqshield.data import sample
from vqshield.integrations.torchvision import ShieldTransform

transform = v2.Compose(
    [
        v2.RandomHorizontalFlip(),
        ShieldTransform("swrd:size=3", seed=0),  # on bytes or on floats in [0, 1]: before the normalisation
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.25] * 3),
    ]
)
photos = sample(4)
for image, label in zip(photos.floats(), photos.labels, strict=True):
    picture = tv_tensors.Image(image.mul(255).byte())
    boxes = tv_tensors.BoundingBoxes([[4, 4, 20, 24]], format="XYXY", canvas_size=(32, 32))
    shielded, moved, _ = transform(picture, boxes, label)
    print(type(shielded).__name__, tuple(shielded.shape), moved.tolist(), int(label))
