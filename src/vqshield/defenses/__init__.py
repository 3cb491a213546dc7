"""The defenses by name. A new one is a new file with a Defense subclass and one line in a registry below."""

import inspect
from collections.abc import Callable, Mapping

from vqshield.core import checks
from vqshield.core.entry_points import names_function
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import Setting, parse_spec, refuse_unknown
from vqshield.defenses.base import CertificateTerms, Defense, Gradient
from vqshield.defenses.bit_depth import BitDepth
from vqshield.defenses.essential_features import EssentialFeatures
from vqshield.defenses.gaussian import GaussianNoise
from vqshield.defenses.jpeg import JPEG
from vqshield.defenses.median import MedianFilter
from vqshield.defenses.prd import PRD
from vqshield.defenses.preprocessor import ImageFunction, Preprocessor, preprocessor_from
from vqshield.defenses.quantizer import DefenseSettings, Quantizer
from vqshield.defenses.randdisc import RandDisc
from vqshield.defenses.resize_pad import ResizePad
from vqshield.defenses.splitting import Splitting
from vqshield.defenses.swrd import SWRD
from vqshield.defenses.total_variation import TotalVariation

_QUANTIZERS: dict[str, type[Quantizer]] = {kind.NAME: kind for kind in (RandDisc, PRD, SWRD)}
_OTHERS: tuple[type[Defense], ...] = (
    GaussianNoise, BitDepth, MedianFilter, JPEG, ResizePad, TotalVariation, EssentialFeatures, Splitting,
)  # fmt: skip
_DEFENSES: dict[str, type[Defense]] = {**_QUANTIZERS, **{kind.NAME: kind for kind in _OTHERS}}


def list_defenses() -> list[str]:
    """The names of the quantizers, which are what is offered as a defense.

    Example:
        >>> vq.list_defenses()
        ['randdisc', 'prd', 'swrd']
    """
    return list(_QUANTIZERS)


def list_all_defenses() -> list[str]:
    """The names of all registered defenses: quantizers, the controls that they are compared with, splitting.

    Example:
        >>> vq.defenses.list_all_defenses()[:5]
        ['randdisc', 'prd', 'swrd', 'gaussian', 'bitdepth']
    """
    return list(_DEFENSES)


def defense_class(name: str) -> type[Defense]:
    """The class behind a name.

    Example:
        >>> vq.defenses.defense_class("swrd") is vq.SWRD
        True
    """
    return _DEFENSES[checks.one_of("defense", name, _DEFENSES)]


def known_settings(name: str) -> dict[str, Setting | None]:
    """The settings of a defense with their defaults, in the order of its signature.

    Example:
        >>> list(vq.defenses.known_settings("swrd"))[:3]
        ['size', 'codes', 'beta']
    """
    return {key: each.default for key, each in _parameters(name).items()}


def create(name: str, **settings: Setting | None) -> Quantizer:
    """A quantizer by its name.

    Raises:
        InvalidInputError: an unknown name or setting, answered with the known ones.

    Example:
        >>> vq.defenses.create("prd", size=3).grid.size
        3
    """
    made = _make(checks.one_of("defense", name, _QUANTIZERS), settings)
    assert isinstance(made, Quantizer)
    return made


def create_any(name: str, **settings: Setting | None) -> Defense:
    """A defense by its name, a quantizer or not.

    Raises:
        InvalidInputError: an unknown name or setting, answered with the known ones, or one that is missing.

    Example:
        >>> vq.defenses.create_any("jpeg", quality=50).quality
        50
    """
    return _make(checks.one_of("defense", name, _DEFENSES), settings)


DefenseLike = str | Defense | ImageFunction
"""What every verb takes as a defense: a spec string, "package.module:function", a Defense, or a module or
function from images to images."""


def as_defense(given: DefenseLike, *, seed: int | None = None) -> Defense:
    """The defense that is meant, with that seed; without one, its own, or an unpredictable one.

    Raises:
        InvalidInputError: an unknown name or setting, two different seeds, or something that is no defense.

    Example:
        >>> vq.defenses.as_defense(lambda images: images / 2, seed=1).seed
        1
    """
    if isinstance(given, str):
        if is_preprocessor(given):
            return preprocessor_from(given, seed=seed)
        name, settings = parse_spec(given)
        if seed is not None and settings.setdefault("seed", seed) != seed:
            raise InvalidInputError(
                f"seed={seed} and seed={settings['seed']} in {given!r} differ; give one of them"
            )
        return create_any(name, **settings)
    if isinstance(given, Defense):
        return given if seed is None else given.reseeded(seed)
    if not callable(given):
        raise InvalidInputError(
            f"defense should be a spec string such as 'swrd:size=3', a Defense such as SWRD(), or a module "
            f"or function from images to images, not {type(given).__name__}"
        )
    return Preprocessor(given, seed=seed)


def from_text(text: str, *, seed: int, called: str = "defense") -> Defense:
    """A defense from text such as "swrd:size=3,codes=25", "jpeg" or "mine:blur", with that seed.

    Args:
        text: a name of `list_all_defenses()` and its settings; a seed or streams among them are refused,
            since they would fix every draw, and so are range and surrogate. Or package.module:function, for
            a preprocessor of your own: see `preprocessor_from`. A registered name before the colon is always
            that defense.
        seed: the seed that the run derived for this purpose.
        called: what the text is called where it was given, for the message about an unknown name.

    Raises:
        InvalidInputError: an unknown name or setting, answered with the known ones, or one that is missing.

    Example:
        >>> vq.defenses.from_text("gaussian:sigma=0.1", seed=3)
        GaussianNoise(sigma=0.1, seed=3)
    """
    if is_preprocessor(text):
        return preprocessor_from(text, seed=seed, called=called)
    name, settings = parse_spec(text)
    checks.one_of(called, name, _DEFENSES)
    if "seed" in settings:
        raise InvalidInputError(
            f"seed={settings['seed']} in {text!r} would fix every draw; give the run a seed instead"
        )
    if "streams" in settings:
        raise InvalidInputError(
            f"streams={settings['streams']} in {text!r} cannot be chosen here: a run needs fresh ones"
        )
    for fixed in ("range", "surrogate"):
        if fixed in settings:
            raise InvalidInputError(
                f"{fixed}={settings[fixed]} in {text!r} cannot be chosen here: a run's images lie in [0, 1], "
                "and its attacks choose the gradient"
            )
    return _make(name, {**settings, "seed": seed})


def is_preprocessor(text: str) -> bool:
    """Whether a text is package.module:function rather than a registered name with settings.

    Example:
        >>> vq.defenses.is_preprocessor("mine:blur"), vq.defenses.is_preprocessor("jpeg:quality=50")
        (True, False)
    """
    return names_function(text) and text.partition(":")[0] not in _DEFENSES


def _make(name: str, settings: Mapping[str, Setting | None]) -> Defense:
    make: Callable[..., Defense] = _DEFENSES[name]
    parameters = _parameters(name)
    refuse_unknown(name, settings, list(parameters))
    missing = [key for key, each in parameters.items() if each.default is each.empty and key not in settings]
    if missing:
        raise InvalidInputError(
            f"{name} takes {missing[0]}, which has no default; write {name}:{missing[0]}=0.1"
        )
    return make(**settings)


def _parameters(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(defense_class(name)).parameters)


__all__ = [
    "JPEG",
    "PRD",
    "SWRD",
    "BitDepth",
    "CertificateTerms",
    "Defense",
    "DefenseLike",
    "DefenseSettings",
    "EssentialFeatures",
    "GaussianNoise",
    "Gradient",
    "ImageFunction",
    "MedianFilter",
    "Preprocessor",
    "Quantizer",
    "RandDisc",
    "ResizePad",
    "Splitting",
    "TotalVariation",
    "as_defense",
    "create",
    "create_any",
    "defense_class",
    "from_text",
    "is_preprocessor",
    "known_settings",
    "list_all_defenses",
    "list_defenses",
    "preprocessor_from",
]
