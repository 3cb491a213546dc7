"""Defended models as ONNX graphs of standard operators, with the noise, k-means and rebuild inside."""

from dataclasses import dataclass
from pathlib import Path

from vqshield.core.files import write_atomically
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.voting import Voting

DEFAULT_OPSET = 18
"""The first that has operators on bits."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written.

    Args:
        path: the file.
        opset: the version of ONNX's standard operators that it needs.
        nodes: how many operators it has, those of loop bodies included.
        bytes: the file's size.
    """

    path: Path
    opset: int
    nodes: int
    bytes: int


def export_onnx(
    model: Defended | Defense | Voting,
    path: Path | str,
    *,
    shape: tuple[int, int, int],
    opset: int = DEFAULT_OPSET,
) -> Exported:
    """Write a defended model, or a defense alone, as ONNX: noise, k-means and rebuild in standard operators.

    The graph has the inputs images (B, q, h, w) float32 in [0, 1], seed (1,) and streams (B,), both int64,
    and the output logits (B, classes), or shielded (B, q, h, w) for a defense alone. The same seed and
    streams give the draws that `model(images, streams=streams)` gives with a defense of that seed: the same
    random words, and normal values up to the last bits of logarithm and cosine. A seed from 2^63 on is given
    less 2^64. The seed of the model itself is not written: a service should draw one when it starts, and
    give every image a stream number of its own. Values are not checked in the graph, and the classifier is
    the one of eval mode.

    The output of a `Voting` is shares (B, classes): how many of its samples give each class, as a fraction.
    Sample k of an image with stream s has stream s·samples + k, and all samples are computed at once.

    Args:
        model: what `vqshield.defend` made, a RandDisc, PRD, SWRD or GaussianNoise, or a `Voting` that is not
            sequential.
        path: the file, usually .onnx.
        shape: (q, h, w) of an image; the batch may have any size.
        opset: 18 or later.

    Raises:
        MissingExtraError: onnx is not installed, or onnxscript, which exports classifiers.
        InvalidInputError: the defense has no form in ONNX, or images of that shape do not fit it.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     export_onnx(vq.SWRD(size=3), Path(folder) / "shield.onnx", shape=(3, 32, 32)).opset
        18
    """
    from vqshield_deploy.onnx import models  # needs the package

    content, nodes = models.encoded(model, shape, opset)
    write_atomically(Path(path), content)
    return Exported(path=Path(path), opset=opset, nodes=nodes, bytes=len(content))


__all__ = ["DEFAULT_OPSET", "Exported", "export_onnx"]
