"""A shield among the `preprocessing_defences` of an estimator of the Adversarial Robustness Toolbox."""

from typing import Any

from torch import Tensor

from vqshield.core.errors import InvalidInputError
from vqshield.defenses import Defense
from vqshield.integrations import require
from vqshield.integrations.shield import Shield
from vqshield.surrogates import Attach, Surrogate

_library = require("art.defences.preprocessor.preprocessor", "art", "adversarial-robustness-toolbox")
_Preprocessor: Any = _library.PreprocessorPyTorch


class ShieldPreprocessor(_Preprocessor):  # type: ignore[misc]
    """A defense for `preprocessing_defences=[…]` of PyTorch classifiers and object detectors.

    ART calls `forward` under autograd and never `estimate_forward`, so the surrogate's gradient is in
    `forward` itself, and attacks go through the shield as through a `Defended` model. Every call has its
    own noise.

    Args:
        defense: a spec string, "swrd:size=3", or a Defense.
        surrogate: its gradient, as of `vqshield.Defended`, except "score".
        seed: the seed of the samples.
        clip_values: the range of the estimator's images, as (0, 1) or (0, 255).
        channels_first: whether images are (B, q, h, w) or (B, h, w, q).
        apply_fit, apply_predict: whether images are shielded in training, and in prediction.
        device_type: "gpu" or "cpu", as of ART's estimators.
    """

    params = ("clip_values", "channels_first", "apply_fit", "apply_predict")

    def __init__(
        self,
        defense: str | Defense = "swrd",
        *,
        surrogate: str | Surrogate | Attach = "ste",
        seed: int | None = None,
        clip_values: tuple[float, float] = (0.0, 1.0),
        channels_first: bool = True,
        apply_fit: bool = False,
        apply_predict: bool = True,
        device_type: str = "gpu",
    ) -> None:
        when = {"apply_fit": apply_fit, "apply_predict": apply_predict}
        super().__init__(device_type=device_type, is_fitted=True, **when)
        self.shield = Shield(defense, surrogate=surrogate, seed=seed)
        self.clip_values = clip_values
        self.channels_first = channels_first
        self._check_params()

    def forward(self, x: Tensor, y: object = None) -> tuple[Tensor, object]:
        """Shielded images, float32 as in all of ART, and the labels unchanged."""
        low, high = self.clip_values
        images = x.float()  # HopSkipJump hands doubles over, which a float32 network would refuse
        images = images if self.channels_first else images.permute(0, 3, 1, 2)
        if (low, high) == (0.0, 1.0):
            shielded = self.shield(images)
        else:
            shielded = self.shield((images - low) / (high - low)) * (high - low) + low
        return shielded if self.channels_first else shielded.permute(0, 2, 3, 1), y

    def _check_params(self) -> None:
        low, high = self.clip_values
        if not low < high:
            raise InvalidInputError(f"clip_values={self.clip_values} should be (low, high), as in (0, 255)")
