"""What was found, as the pieces of HTML and the pixels that the page shows; assets/style.css dresses them."""

import math
from html import escape

import numpy as np
import torch
from torch import Tensor

from vqshield.app.attacking import ATTACKS, Attacked
from vqshield.app.choices import Choice
from vqshield.app.recorded import recorded
from vqshield.app.shielding import Answers, Shielded
from vqshield.app.subjects import class_name
from vqshield.core.display_names import display_defense
from vqshield.core.settings import format_value
from vqshield.demo.pictures import as_bytes, png, png_uri
from vqshield.demo.study import Threat
from vqshield.images.files import Bytes
from vqshield.reports.numbers import percent

SHOWN_SIDE = 384
"""Pixels that small pictures are enlarged to, every pixel a square: a browser would blur them."""
_THREATS: tuple[Threat, ...] = ("none", "ignorant", "adaptive")
_MEASURED = ("size", "codes", "noise", "sigma", "tau", "beta")  # the settings that the page shows


def recorded_panel(choice: Choice) -> str:
    """What was measured of a defense, which stays in view; the adaptive attack largest."""
    found = recorded(choice)
    natural, ignorant, adaptive = (found.rows[each] for each in _THREATS)
    results = "".join(
        f'<div class="{kind}"><dt>{title}</dt><dd>{percent(row.robust)}<span> %</span></dd></div>'
        for kind, title, row in (
            ("natural", "clean pictures", natural),
            ("ignorant", "attack that ignores the shield", ignorant),
            ("adaptive", "attack through the shield", adaptive),
        )
    )
    settings = ",".join(
        f"{name}={format_value(adaptive.settings[name])}"
        for name in _MEASURED
        if name in adaptive.settings
        and (name, adaptive.settings[name]) != ("noise", "patch")  # where it usually is
    )
    other = "" if found.covers(choice) else " <strong>Your settings differ and were not measured.</strong>"
    attack = adaptive.attack.replace("pgd", "PGD").replace("eot", "EOT")
    return (
        f'<section class="vq-worth" aria-label="How much the shield protects">'
        f"<h2>{escape(choice.title)} keeps right</h2><dl>{results}</dl>"
        f"<p>{adaptive.n} CIFAR-10 test images, ε = {format_value(found.summary.epsilon)}, mean of "
        f"{adaptive.runs} runs, {escape(display_defense(f'{choice.name}:{settings}'))}; through the shield: "
        f"{escape(attack)}, and longer attacks lower it. Audit {escape(found.summary.audit)}.{other}</p>"
        "</section>"
    )


def answer_bars(title: str, answers: Answers, *, label: int | None) -> str:
    """A bar for every class that was answered; the true class, where it is known, in another colour."""
    rows = "".join(
        f'<li class="{_verdict(answered, label)}">'
        f'<span class="vq-class">{escape(class_name(answered))}</span>'
        f'<span class="vq-track"><span style="width:{100 * count / answers.draws:.0f}%"></span></span>'
        f'<span class="vq-count">{count} of {answers.draws}</span></li>'
        for answered, count in answers.counts.items()
    )
    return f'<div class="vq-bars"><h3>{escape(title)}</h3><ul>{rows}</ul></div>'


def shield_answers(found: Shielded, choice: Choice, *, label: int | None) -> str:
    """The answers without and with the shield, and the time it took."""
    truth = (
        "" if label is None else f"<p>The picture shows: <strong>{escape(class_name(label))}</strong>.</p>"
    )
    behind = f"Behind {choice.title}, {found.answers.draws} draws"
    return (
        f'<div class="vq-answers">{truth}{answer_bars("Without a shield", found.bare, label=label)}'
        f"{answer_bars(behind, found.answers, label=label)}"
        f'<p class="vq-quiet">{milliseconds(found.seconds)} to shield the picture, '
        f"{milliseconds(found.answering)} to shield and classify {found.answers.draws} draws.</p></div>"
    )


def attack_answers(found: Attacked, choice: Choice) -> str:
    """What the attack changed, in a sentence and in bars."""
    kept, had, draws = found.answers.of(found.label), found.before.of(found.label), found.answers.draws
    name, bare = escape(class_name(found.label)), escape(class_name(found.bare.first))
    says = f"still says {bare}" if found.bare.first == found.bare_before.first else f"now says {bare}"
    known = (
        "" if found.known else f" (What your picture shows is not known: the attack leads away from {name}.)"
    )
    return (
        f'<div class="vq-answers"><p class="vq-verdict">{escape(ATTACKS[found.kind].explanation)} '
        f"No value changed by more than {found.largest}/255.</p>"
        f"<p>Behind {escape(choice.title)}, {had} of {draws} draws said <strong>{name}</strong>; "
        f"<strong>{kept} of {draws}</strong> do now. The bare classifier {says}.{known}</p>"
        f"{answer_bars('Attacked, without a shield', found.bare, label=found.label)}"
        f"{answer_bars(f'Attacked, then {choice.title}', found.answers, label=found.label)}"
        f'<p class="vq-quiet">The attack took {found.seconds:.1f} s; the draws are fresh, it saw none of '
        "them.</p></div>"
    )


def codebook_panel(centres: Tensor) -> str:
    """The centres (k, 3, s, s): colours, or patches of a few pixels."""
    count, side = centres.shape[0], centres.shape[2]
    what = "colours" if side == 1 else f"patches of {side}×{side} pixels"
    sheet = torch.from_numpy(codebook_sheet(centres)).permute(2, 0, 1)
    return (
        f'<figure class="vq-codebook"><img src="{png_uri(png(sheet))}" '
        f'alt="the codebook: {count} {what}"><figcaption>The codebook of this draw: {count} {what}, found by '
        "k-means in this picture alone.</figcaption></figure>"
    )


def codebook_sheet(centres: Tensor) -> Bytes:
    """The centres as one picture with an alpha channel: tiles of the same size, nothing between them."""
    tile, gap = 24, 4
    count, side = centres.shape[0], centres.shape[2]
    columns = min(count, max(10, math.ceil(math.sqrt(2 * count))))
    rows = -(-count // columns)
    sheet = np.zeros((rows * (tile + gap) - gap, columns * (tile + gap) - gap, 4), np.uint8)
    scale = tile // side  # 24, 12, 8, 6: the sides are 1 to 4
    for number, patch in enumerate(as_bytes(centres).permute(0, 2, 3, 1).numpy()):
        top, left = (number // columns) * (tile + gap), (number % columns) * (tile + gap)
        square = patch.repeat(scale, 0).repeat(scale, 1)
        sheet[top : top + len(square), left : left + len(square), :3] = square
        sheet[top : top + len(square), left : left + len(square), 3] = 255
    return sheet


def enlarged(image: Tensor) -> Bytes:
    """An image (3, h, w), in [0, 1] or bytes, as pixels (h, w, 3), enlarged where it is small."""
    pixels: Bytes = (image if image.dtype.itemsize == 1 else as_bytes(image)).permute(1, 2, 0).numpy()
    scale = max(SHOWN_SIDE // max(pixels.shape[:2]), 1)
    return np.ascontiguousarray(pixels.repeat(scale, 0).repeat(scale, 1))


def notice(text: str, *, problem: bool = False) -> str:
    """A line for the visitor; nothing at all where there is nothing to say."""
    role = "alert" if problem else "status"
    return f'<p class="vq-notice vq-{role}" role="{role}">{escape(text)}</p>' if text else ""


def milliseconds(seconds: float) -> str:
    """A short time."""
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _verdict(answered: int, label: int | None) -> str:
    if label is None:
        return "vq-open"
    return "vq-right" if answered == label else "vq-wrong"
