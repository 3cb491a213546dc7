"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from vqshield.attacks import PRECISIONS, ball, list_norms
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import parse_number
from vqshield.data import list_datasets
from vqshield.defenses import list_all_defenses


def parse_eps(text: str, norm: str = "linf") -> float:
    """A budget as it is typed; one in bytes is answered with the fraction that was meant."""
    eps = parse_number("eps", text)
    if norm == "linf" and eps > 1:
        raise InvalidInputError(
            f"eps={text} is more than a pixel's whole range [0, 1]. Did you mean {text}/255?"
        )
    return eps


Data = Annotated[str, typer.Option(help=f"Data set: {', '.join(list_datasets())}.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder with the data set's official files; without it, the cache folder.")
]
Classifier = Annotated[
    str,
    typer.Option(
        help="A safetensors file, small-cifar10 (bundled), efficientnet-lite0, timm:NAME, torchvision:NAME, "
        "module:function: see vqshield list classifiers."
    ),
]
DEFENSES = (
    f"{', '.join(list_all_defenses())} (see vqshield list defenses), or package.module:function, a "
    "preprocessor of your own"
)
"""What a defense may be, for the help of the options that take one."""
Behind = Annotated[
    str | None,
    typer.Option(
        "--defense",
        help=f"One of {DEFENSES}, or {NONE}. Without it, the one that the classifier's file says it was "
        "fine-tuned behind, else none.",
    ),
]
Norm = Annotated[str, typer.Option(help=f"The attacks' norm: {', '.join(list_norms())}.")]
Eps = Annotated[
    str | None,
    typer.Option(
        help="The attacks' budget, as in 8/255 or 0.5 (default: "
        f"{'; '.join(ball(norm).budget for norm in list_norms())})."
    ),
]
Limit = Annotated[int | None, typer.Option(help="Only the first images, this many; without it, all.")]
Seed = Annotated[int, typer.Option(help="Decides every draw of defenses and attacks.")]
UsualRuns = Annotated[
    int | None, typer.Option(help="Fresh draws of the defense behind each figure; without it, 10 or 5.")
]
UsualBatch = Annotated[int | None, typer.Option(help="Images attacked at once; without it, 250 or 32.")]
Precision = Annotated[
    str,
    typer.Option(
        help=f"What attacks compute gradients in, or the answers that they ask for where they use none: "
        f"{', '.join(PRECISIONS)}. All but the first also leave images alone that are lost for certain; "
        "answers that are reported stay float32, and so do those of models that are not random."
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: the GPU where there is one.")]
Records = Annotated[
    Path, typer.Option(help="Folder for records and summary; a run that was stopped goes on there.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Set what is in --out aside, and start over.")]
SummaryOnly = Annotated[
    bool, typer.Option("--summary-only", help="Only sum up what is in --out, finished or not.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
