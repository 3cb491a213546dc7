"""Which quantizers the worst-case certificate covers, and with how much noise.

A covered quantizer sees the image only through Gaussian noise; docs/certificates.md derives how much.
"""

import math
from dataclasses import dataclass

from vqshield.certificates.numbers import positive
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError


@dataclass(frozen=True)
class Coverage:
    """A draw is post-processing of x·copies plus Gaussian noise of standard deviation sigma_eff.

    copies is how much longer in L2 a perturbation of the image can become in the patches: sqrt of the number
    of times that a pixel is copied, each time with noise of its own.

    Example:
        >>> terms = vq.SWRD(size=3, noise="image", sigma=0.1, tau=0.1).certificate_terms()
        >>> vq.certificates.Coverage.of(**terms)
        Coverage(sigma_eff=0.0707..., copies=1.0)
    """

    sigma_eff: float
    copies: float

    @classmethod
    def of(
        cls,
        *,
        kind: str,
        size: int,
        sigma: float,
        tau: float,
        weights_from: str = "clean",
        beta: float | None = None,
        padding: str = "zero",
        noise: str = "patch",
        shared: bool = False,
    ) -> "Coverage":
        """What the certificate may assume of a quantizer.

        Args:
            kind: "disjoint" patches (RandDisc at size 1, pRD) or "sliding" windows (swRD).
            size: s, their side.
            sigma, tau: standard deviations of the noise that codebook and assignment see.
            weights_from: "clean" or "noisy"; swRD's clean weights see the image without noise unless beta=0.
            padding: "reflect" copies pixels at the border of disjoint patches, up to four times.
            noise: "patch", drawn for every patch separately, or "image", drawn once and then cut.
            shared: codebook and assignment see the very same noise, which needs tau = sigma.

        Raises:
            InvalidInputError: no certificate holds, with the reason.
        """
        checks.whole("size", size, least=1)
        checks.one_of("kind", kind, ("disjoint", "sliding"))
        checks.one_of("weights_from", weights_from, ("clean", "noisy"))
        checks.one_of("padding", padding, ("zero", "reflect"))
        checks.one_of("noise", noise, ("patch", "image"))
        for name, value in (("sigma", sigma), ("tau", tau)):
            if checks.real(name, value) == 0:
                reason = "the image is seen without noise; it should be > 0"
                raise InvalidInputError(f"no certificate holds for {name}={value}: {reason}")
        # A single window covers each pixel at size 1: its weight is 1, whatever it is computed from.
        if kind == "sliding" and size > 1 and weights_from == "clean" and beta != 0:
            raise InvalidInputError(
                f"no certificate holds for weights_from='clean' with beta={beta}: the weights see the image "
                "without noise; use weights_from='noisy', or beta=0, or noise='image'"
            )
        if shared and sigma != tau:
            raise InvalidInputError(
                f"no certificate holds for shared noise with sigma={sigma} and tau={tau}: two scalings of "
                "one draw give the image away; they should be equal"
            )
        sigma_eff = float(sigma) if shared else effective_sigma(sigma=sigma, tau=tau)
        return cls(sigma_eff, _copies(kind, size, padding, noise))


def effective_sigma(*, sigma: float, tau: float) -> float:
    """(1/sigma² + 1/tau²)^(−1/2): x+eps and x+omega together show as much of x as one look with this noise.

    Example:
        >>> round(vq.certificates.effective_sigma(sigma=0.3, tau=0.4), 4)
        0.24
    """
    small, large = sorted((positive("sigma", sigma), positive("tau", tau)))
    return small / math.hypot(1, small / large)


def _copies(kind: str, size: int, padding: str, noise: str) -> float:
    if size == 1:
        return 1.0
    if kind == "sliding":
        return 1.0 if noise == "image" else float(size)  # s² windows cover a pixel
    return 2.0 if padding == "reflect" else 1.0  # mirrored at most once downwards and once to the right
