"""What a visitor chooses: a defense with its settings, its classifier, and what was measured of both."""

from dataclasses import dataclass
from functools import cache
from importlib import resources

from torch import nn

from vqshield.classifiers import small_cifar10, small_cifar10_hardened
from vqshield.core import checks
from vqshield.core.display_names import display_name
from vqshield.core.files import parse_json
from vqshield.core.serialization import from_plain
from vqshield.data import sample
from vqshield.defenses import SWRD, Quantizer, create, known_settings, list_defenses
from vqshield.demo.study import (
    CALIBRATED,
    CALIBRATION_IMAGES,
    TUNED,
    DemoRow,
    DemoSettings,
    DemoSummary,
    Threat,
)
from vqshield.training.calibration import calibrate

PRESETS = {"calibrated": CALIBRATED, "hardened": TUNED}
"""swRD with a classifier that was fitted to its images, and the name of both in the demo; nothing to set."""
SETTINGS = ("size", "codes", "sigma", "tau", "beta")
MOST_SIZE, MOST_CODES, MOST_NOISE, MOST_BETA = 4, 100, 20, 10
"""As far as the paper goes, noise in 255ths: they bound the time that a call takes."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A defense of `list_choices()` and its settings; those that it does not have are ignored.

    sigma and tau, the noise, are in 255ths of a pixel's range.
    """

    defense: str = "swrd"
    size: int = 3
    codes: int = 25
    sigma: float = 4.0
    tau: float = 4.0
    beta: float = 2.0

    def __post_init__(self) -> None:
        checks.one_of("defense", self.defense, list_choices())
        checks.whole("s", self.size, least=1, below=MOST_SIZE + 1)
        checks.whole("k", self.codes, least=1, below=MOST_CODES + 1)
        for name in ("sigma", "tau"):
            checks.real(name, getattr(self, name), most=MOST_NOISE)
        checks.real("beta", self.beta, most=MOST_BETA)

    @property
    def title(self) -> str:
        """What people call it."""
        return PRESETS.get(self.defense) or display_name(self.defense)

    def quantizer(self, seed: int | None = None) -> Quantizer:
        """The defense itself; without a seed its samples cannot be predicted."""
        if self.defense in PRESETS:
            return _preset(self.defense, seed)
        values = {name: getattr(self, name) for name in settings_of(self.defense)}
        values |= {name: values[name] / 255 for name in ("sigma", "tau")}
        return create(self.defense, **values, seed=seed)

    def classifier(self) -> nn.Module:
        """The bundled classifier that stands behind it."""
        return _classifier(self.defense if self.defense in PRESETS else "")

    @property
    def recorded(self) -> dict[Threat, DemoRow]:
        """What `vqshield demo` measured of this defense, by threat, with whichever settings."""
        return {row.threat: row for row in recorded_demo().rows if row.defense == self.title}

    @property
    def is_recorded(self) -> bool:
        """Whether it was measured with these very settings."""
        return dict(self.recorded["none"].settings) == self.quantizer().settings()


def settings_of(defense: str) -> list[str]:
    """The settings of a defense that can be chosen."""
    return [] if defense in PRESETS else [name for name in SETTINGS if name in known_settings(defense)]


def list_choices() -> list[str]:
    """The defenses that can be chosen."""
    return [*list_defenses(), *PRESETS]


def usual(defense: str) -> Choice:
    """A defense with the settings that it was measured with: the paper's for CIFAR-10, or the preset's."""
    checks.one_of("defense", defense, list_choices())
    measured = _preset(defense) if defense in PRESETS else create(defense)
    return Choice(
        defense=defense,
        size=measured.size,
        codes=measured.codes,
        sigma=round(255 * measured.sigma, 6),
        tau=round(255 * measured.tau, 6),
        beta=measured.beta if isinstance(measured, SWRD) else Choice.beta,
    )


def _preset(name: str, seed: int | None = None) -> SWRD:
    return SWRD.hardened("cifar10", seed=seed) if name == "hardened" else SWRD(seed=seed)


@cache
def _classifier(preset: str) -> nn.Module:
    """Read once, then shared by all sessions, which only query it; calibrated as in the demo."""
    if preset == "hardened":
        return small_cifar10_hardened()
    if preset != "calibrated":
        return small_cifar10()
    first = DemoSettings().limit
    images = sample().floats(slice(first, first + CALIBRATION_IMAGES))
    return calibrate("small-cifar10", images, defense=SWRD(seed=0), device="cpu").classifier


@cache
def recorded_demo() -> DemoSummary:
    """The packaged copy of paper/results/demo.json, which paper/tools/update_docs.py makes."""
    name = "demo.json"
    text = (resources.files("vqshield_app") / "assets" / name).read_bytes()
    return from_plain(DemoSummary, parse_json(text, name), name)
