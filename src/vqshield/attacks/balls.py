"""The sets an attack may move in: all images within eps of the original, and within [0, 1]."""

from dataclasses import dataclass

from torch import Tensor

from vqshield import checks


@dataclass(frozen=True)
class Linf:
    """Every pixel value may change by at most eps."""

    eps: float

    def __post_init__(self) -> None:
        checks.real("eps", self.eps, most=1.0)

    def project(self, moved: Tensor, images: Tensor) -> Tensor:
        """The nearest allowed images."""
        return moved.clamp(images - self.eps, images + self.eps).clamp_(0, 1)

    def start(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """A point of the ball from values uniform in (0, 1) of the images' shape."""
        return self.project(images + (2 * uniforms - 1).to(images.dtype) * self.eps, images)

    def steepest(self, gradient: Tensor) -> Tensor:
        """The direction of unit length that raises the loss most."""
        return gradient.sign()

    def distance(self, moved: Tensor, images: Tensor) -> Tensor:
        """How far each image was moved, (B,)."""
        return (moved - images).abs().flatten(1).amax(1)
