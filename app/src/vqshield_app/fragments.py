"""The results as pieces of HTML, from the templates in assets/, and as the pixels that the page shows."""

import math
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vqshield.core.display_names import display_defense
from vqshield.core.settings import format_value
from vqshield.images.files import Bytes
from vqshield.images.pictures import as_bytes, png, png_uri
from vqshield.reports.html import page
from vqshield_app.choices import PRESETS, Choice, recorded_demo
from vqshield_app.experiments import ATTACKS, Attacked, Shielded
from vqshield_app.subjects import offered_images

_SIDE = 384  # pixels that small pictures are enlarged to, every pixel a square: a browser would blur them
_TILE, _GAP = 24, 4  # pixels, of a codebook's picture; patches have sides of 1 to 4 pixels
_TIMES = 16  # how much larger a change is shown
_MEASURED = ("size", "codes", "noise", "sigma", "tau", "beta")  # the settings that the page shows


def _fragment(template: str, **values: Any) -> str:
    return page(template, folder=Path(__file__).parent / "assets", classes=offered_images().classes, **values)


def recorded_panel(choice: Choice) -> str:
    """What was measured of a defense, which stays in view; the adaptive attack largest."""
    summary, rows = recorded_demo(), choice.recorded
    known = rows["adaptive"].settings
    settings = ",".join(
        f"{name}={format_value(known[name])}"
        for name in _MEASURED
        if name in known and (name, known[name]) != ("noise", "patch")  # where it usually is
    )
    return _fragment(
        "recorded.html",
        choice=choice,
        rows=rows,
        adaptive=rows["adaptive"],
        epsilon=format_value(summary.epsilon),
        defense=display_defense(f"{'swrd' if choice.defense in PRESETS else choice.defense}:{settings}"),
        audit=summary.audit,
    )


def shield_answers(shielded: Shielded, choice: Choice, *, label: int | None) -> str:
    """The answers without and with the shield, and the time it took."""
    return _fragment(
        "shielded.html", shielded=shielded, title=choice.title, label=label, milliseconds=milliseconds
    )


def attack_answers(attacked: Attacked, choice: Choice, kind: str) -> str:
    """What the attack changed, in a sentence and in bars."""
    return _fragment(
        "attacked.html",
        attacked=attacked,
        title=choice.title,
        explanation=ATTACKS[kind].explanation,
        change=png_uri(png(torch.from_numpy(magnified(attacked)).permute(2, 0, 1))),
        times=_TIMES,
    )


def magnified(attacked: Attacked) -> Bytes:
    """What the attack adds to each value, 16 times as large, on mid-grey; enlarged like the pictures."""
    change = _TIMES * (attacked.image.int() - attacked.clean.int()) + 128
    return enlarged(change.clamp(0, 255).byte())


def codebook_panel(centres: Tensor) -> str:
    """The centres (k, 3, s, s): colours, or patches of a few pixels."""
    sheet = torch.from_numpy(codebook_sheet(centres)).permute(2, 0, 1)
    return _fragment("codebook.html", count=len(centres), side=centres.shape[2], image=png_uri(png(sheet)))


def codebook_sheet(centres: Tensor) -> Bytes:
    """The centres as one picture with an alpha channel: tiles of the same size, nothing between them."""
    count, step = len(centres), _TILE + _GAP
    columns = min(count, max(10, math.ceil(math.sqrt(2 * count))))
    sheet = np.zeros((-(-count // columns) * step - _GAP, columns * step - _GAP, 4), np.uint8)
    scale = _TILE // centres.shape[2]
    for number, patch in enumerate(as_bytes(centres).permute(0, 2, 3, 1).numpy()):
        top, left = number // columns * step, number % columns * step
        sheet[top : top + _TILE, left : left + _TILE, :3] = patch.repeat(scale, 0).repeat(scale, 1)
        sheet[top : top + _TILE, left : left + _TILE, 3] = 255
    return sheet


def enlarged(image: Tensor) -> Bytes:
    """An image (3, h, w), in [0, 1] or bytes, as pixels (h, w, 3), enlarged where it is small."""
    pixels: Bytes = (image if image.dtype.itemsize == 1 else as_bytes(image)).permute(1, 2, 0).numpy()
    scale = max(_SIDE // max(pixels.shape[:2]), 1)
    return np.ascontiguousarray(pixels.repeat(scale, 0).repeat(scale, 1))


def notice(text: str, *, problem: bool = False) -> str:
    """A line for the visitor; nothing at all where there is nothing to say."""
    role = "alert" if problem else "status"
    return f'<p class="vq-notice vq-{role}" role="{role}">{escape(text)}</p>' if text else ""


def milliseconds(seconds: float) -> str:
    """A short time."""
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
