"""Options that several commands share: what differs from the Python call, and what only commands have."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from vqshield.attacks import PRECISIONS, list_attacks
from vqshield.attacks.suites import list_suites
from vqshield.classifiers import BUNDLED
from vqshield.cli.derived import Option, PythonOnly, Source, derived
from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import parse_number
from vqshield.data import list_datasets
from vqshield.defenses import list_all_defenses

DEFENSES = f"{', '.join(list_all_defenses())}, or package.module:function, a preprocessor of your own"
"""What a defense may be, for the help of the options that take one."""
ATTACKS = (
    f"one of {', '.join(list_attacks())}, as in pgd:steps=20,eot=5,surrogate=soft (surrogate=none: "
    f"ignores the defense), or a suite: {', '.join(list_suites())}"
)
"""What --attack may be."""


def parse_eps(text: str, norm: str = "linf") -> float:
    """A budget as it is typed; one in bytes is answered with the fraction that was meant."""
    eps = parse_number("eps", text)
    if norm == "linf" and eps > 1:
        raise InvalidInputError(f"eps={text} is more than a pixel's range [0, 1]. Did you mean {text}/255?")
    return eps


def _eps(text: str, typed: Mapping[str, Any]) -> float:
    return parse_eps(text, typed["norm"])


def classifier(default: tuple[object, str] | None = None) -> Option:
    """--classifier, whose default may differ from that of the Python call."""
    return Option(
        "classifier",
        type=str,
        help="A safetensors file, small-cifar10 (bundled), efficientnet-lite0, timm:NAME, torchvision:NAME, "
        "module:function, http://HOST/PATH: see vqshield list classifiers.",
        default=default,
    )


TRY_BUNDLED = classifier((BUNDLED, "the bundled classifier tries it"))
DATA = Option("data", help=f"Data set: {', '.join(list_datasets())}.")
SAMPLES = Option("samples", parse=lambda count, _: checks.whole("samples", count, least=1))
"""For the field `runs` of settings, whose names are those of files."""
_DEVICE = "cpu, cuda, or auto: the GPU where there is one."
SHARED: dict[str, Option | PythonOnly] = {
    "model": classifier(),
    "images": DATA,
    "labels": PythonOnly("belong to images that are tensors"),
    "defense": Option(
        help=f"One of {DEFENSES}, as in swrd:size=3,codes=25, or {NONE} (default: the one that the "
        f"classifier's file says it was fine-tuned behind, else {NONE})."
    ),
    "eps": Option(type=str, parse=_eps),
    "data_dir": Option(
        help="Folder with the official files of a named data set (default: the cache folder)."
    ),
    "device": Option(help=_DEVICE),
    "executor": PythonOnly("made from --executor and the options after it"),
    "progress": PythonOnly("commands show a progress bar"),
}
"""Declarations for the parameters of these names, whichever call they belong to."""


def command(
    *sources: Source, **declared: Option | PythonOnly
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command derived from Python calls, with the declarations that commands share."""
    return derived(*sources, **SHARED | declared)


Precision = Annotated[
    str,
    typer.Option(
        help=f"Precision of the attacks' gradients, or of their queries if they use none: "
        f"{', '.join(PRECISIONS)}. All but float32 also skip images that are already misclassified in "
        "every sample. Reported accuracies, and models that are not random, use float32."
    ),
]
CalibrationImages = Annotated[
    str | None,
    typer.Option(
        "--calibrate",
        help="Calibrate the classifier behind each defense (vqshield calibrate) on unlabelled images: a data "
        "set with a training split, NAME or NAME=DIR, or a folder of image files. ladder and leaderboard "
        "add a row for it.",
    ),
]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="Use fewer images, samples and steps: minutes instead of hours on a CPU."),
]
Device = Annotated[str, typer.Option(help=_DEVICE)]
