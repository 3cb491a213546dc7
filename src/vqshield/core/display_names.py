"""What people call a defense or an error bound: the one place for display names and the paper's symbols."""

from collections.abc import Mapping

from vqshield.core.entry_points import names_function
from vqshield.core.settings import Setting, format_value, parse_spec

NONE = "none"
"""No defense, or no attack."""
IN_MEMORY = "in memory"
"""What records call a classifier, a data set or a defense that no file or spec string describes."""
_NAMES = {
    "randdisc": "RandDisc", "prd": "pRD", "swrd": "swRD", "gaussian": "Gaussian noise", NONE: "no defense",
    "bitdepth": "bit depth", "median": "median filter", "jpeg": "JPEG", "resizepad": "resize and pad",
    "tv": "total variation", "essential": "Essential Features",
}  # fmt: skip
BOUND_NAMES = {
    "proposition1": "Proposition 1",
    "truncated_markov": "truncated Markov",
    "empirical_bernstein": "empirical Bernstein",
    "clopper_pearson": "Clopper–Pearson",
}
"""The error bounds of `vqshield.certificates.list_bounds`."""
_SYMBOLS = {"size": "s", "codes": "k", "beta": "β", "sigma": "σ", "tau": "τ"}


def display_name(defense: str) -> str:
    """The name alone: "swRD" for swrd or swrd:size=3; an unknown name stays as it is."""
    return _name_and_settings(defense)[0]


def display_defense(defense: str) -> str:
    """Name and settings as the paper writes them: "swRD (s=3, k=25)" for swrd:size=3,codes=25."""
    name, settings = _name_and_settings(defense)
    pairs = ", ".join(f"{_SYMBOLS.get(key, key)}={format_value(value)}" for key, value in settings.items())
    return f"{name} ({pairs})" if pairs else name


def _name_and_settings(defense: str) -> tuple[str, Mapping[str, Setting]]:
    is_your_own = names_function(defense) or defense.startswith(IN_MEMORY)
    name, settings = (defense, {}) if is_your_own else parse_spec(defense)
    return _NAMES.get(name, name), settings
