"""The defenses by name. A new one is a file with a Defense subclass and its name in the tables below.

A defense's module is imported when the defense is first used.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from vqshield.core import checks
from vqshield.core.entry_points import names_function
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import Setting, parse_spec, refuse_unknown
from vqshield.defenses.base import (
    CertificateTerms,
    Defense,
    DefenseOptions,
    Gradient,
    ImageFunction,
    constructor_parameters,
)

if TYPE_CHECKING:
    from vqshield.defenses.baselines import JPEG as JPEG
    from vqshield.defenses.baselines import BitDepth as BitDepth
    from vqshield.defenses.baselines import EssentialFeatures as EssentialFeatures
    from vqshield.defenses.baselines import MedianFilter as MedianFilter
    from vqshield.defenses.baselines import ResizePad as ResizePad
    from vqshield.defenses.baselines import TotalVariation as TotalVariation
    from vqshield.defenses.gaussian import GaussianNoise as GaussianNoise
    from vqshield.defenses.prd import PRD as PRD
    from vqshield.defenses.prd import RandDisc as RandDisc
    from vqshield.defenses.preprocessor import Preprocessor as Preprocessor
    from vqshield.defenses.preprocessor import preprocessor_from as preprocessor_from
    from vqshield.defenses.quantizer import DefenseSettings as DefenseSettings
    from vqshield.defenses.quantizer import Quantizer as Quantizer
    from vqshield.defenses.splitting import Splitting as Splitting
    from vqshield.defenses.swrd import SWRD as SWRD

_QUANTIZERS = {"randdisc": "prd.RandDisc", "prd": "prd.PRD", "swrd": "swrd.SWRD"}
_DEFENSES = {
    **_QUANTIZERS,
    "gaussian": "gaussian.GaussianNoise",
    "bitdepth": "baselines.BitDepth",
    "median": "baselines.MedianFilter",
    "jpeg": "baselines.JPEG",
    "resizepad": "baselines.ResizePad",
    "tv": "baselines.TotalVariation",
    "essential": "baselines.EssentialFeatures",
    "splitting": "splitting.Splitting",
}
"""The module and class behind each name, which is the `NAME` of the class."""
_HOMES = {
    **{kind: module for module, _, kind in (path.partition(".") for path in _DEFENSES.values())},
    **dict.fromkeys(("DefenseSettings", "Quantizer"), "quantizer"),
    **dict.fromkeys(("Preprocessor", "preprocessor_from"), "preprocessor"),
}

DefenseLike = str | Defense | ImageFunction
"""What every verb takes as a defense: a spec string, "package.module:function", a Defense, or a module or
function from images to images."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def list_defenses() -> list[str]:
    """The names of the quantizers, which are what is offered as a defense.

    Example:
        >>> vq.list_defenses()
        ['randdisc', 'prd', 'swrd']
    """
    return list(_QUANTIZERS)


def list_all_defenses() -> list[str]:
    """The names of all registered defenses: quantizers, the baselines they are compared with, splitting.

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
    module, _, kind = _DEFENSES[checks.one_of("defense", name, _DEFENSES)].partition(".")
    found: type[Defense] = getattr(import_module(f"{__name__}.{module}"), kind)
    return found


def known_settings(name: str) -> dict[str, Setting | None]:
    """The settings of a defense with their defaults, in the order of its signature.

    Example:
        >>> list(vq.defenses.known_settings("swrd"))[:3]
        ['size', 'codes', 'beta']
    """
    return {key: each.default for key, each in constructor_parameters(defense_class(name)).items()}


def create(name: str, **settings: Setting | None) -> "Quantizer":
    """A quantizer by its name, as `create_any`.

    Example:
        >>> vq.defenses.create("prd", size=3).grid.size
        3
    """
    return cast("Quantizer", create_any(checks.one_of("defense", name, _QUANTIZERS), **settings))


def create_any(name: str, **settings: Setting | None) -> Defense:
    """A defense by its name, a quantizer or not.

    Raises:
        InvalidInputError: an unknown name or setting, answered with the known ones, or one that is missing.

    Example:
        >>> vq.defenses.create_any("jpeg", quality=50).quality
        50
    """
    make: Callable[..., Defense] = defense_class(name)
    parameters = constructor_parameters(defense_class(name))
    refuse_unknown(name, settings, list(parameters))
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in settings:
            raise InvalidInputError(f"{name} takes {key}, which has no default; write {name}:{key}=0.1")
    return make(**settings)


def as_defense(given: DefenseLike, *, seed: int | None = None) -> Defense:
    """The defense that is meant, with that seed; without one, its own, or an unpredictable one.

    Raises:
        InvalidInputError: as of `create_any`; two different seeds, or something that is not a defense.

    Example:
        >>> vq.defenses.as_defense(lambda images: images / 2, seed=1).seed
        1
    """
    if isinstance(given, str):
        if is_preprocessor(given):
            from vqshield.defenses.preprocessor import preprocessor_from

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
    from vqshield.defenses.preprocessor import Preprocessor

    return Preprocessor(given, seed=seed)


def from_text(text: str, *, seed: int) -> Defense:
    """A defense from a spec string such as "swrd:size=3,codes=25", "jpeg" or "mine:blur", with that seed.

    Args:
        text: a name of `list_all_defenses()` and its settings, without seed, streams, range and surrogate,
            which the run decides. Or package.module:function: see `preprocessor_from`.
        seed: the seed that the run derived for this purpose.

    Raises:
        InvalidInputError: as of `create_any`, or a setting that the run decides.

    Example:
        >>> vq.defenses.from_text("gaussian:sigma=0.1", seed=3)
        GaussianNoise(sigma=0.1, seed=3)
    """
    if is_preprocessor(text):
        return as_defense(text, seed=seed)
    name, settings = parse_spec(text)
    reasons = {
        "seed": "would fix every draw; give the run a seed instead",
        "streams": "cannot be chosen here: a run needs fresh ones",
        "range": "cannot be chosen here: a run's images lie in [0, 1]",
        "surrogate": "cannot be chosen here: a run's attacks choose the gradient",
    }
    for fixed in reasons.keys() & settings:
        raise InvalidInputError(f"{fixed}={settings[fixed]} in {text!r} {reasons[fixed]}")
    return create_any(name, **settings, seed=seed)


def is_preprocessor(text: str) -> bool:
    """Whether a text is package.module:function rather than a registered name with settings.

    Example:
        >>> vq.defenses.is_preprocessor("mine:blur"), vq.defenses.is_preprocessor("jpeg:quality=50")
        (True, False)
    """
    return names_function(text) and text.partition(":")[0] not in _DEFENSES


__all__ = [
    "CertificateTerms", "Defense", "DefenseLike", "DefenseOptions", "Gradient", "ImageFunction", "as_defense",
    "create", "create_any", "defense_class", "from_text", "is_preprocessor", "known_settings",
    "list_all_defenses", "list_defenses", *_HOMES,
]  # fmt: skip
