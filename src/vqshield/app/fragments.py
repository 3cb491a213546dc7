"""The results as pieces of HTML and as the pixels that the page shows; assets/style.css dresses them."""

import math
from html import escape

import numpy as np
import torch
from torch import Tensor

from vqshield.app.choices import HARDENED, Choice, recorded_demo
from vqshield.app.experiments import ATTACKS, Answers, Attacked, Shielded
from vqshield.app.subjects import class_name
from vqshield.core.display_names import display_defense
from vqshield.core.settings import format_value
from vqshield.demo.pictures import as_bytes, png, png_uri
from vqshield.images.files import Bytes
from vqshield.reports.text import percent

_SIDE = 384  # pixels that small pictures are enlarged to, every pixel a square: a browser would blur them
_TILE, _GAP = 24, 4  # pixels, of a codebook's picture; patches have sides of 1 to 4 pixels
_MEASURED = ("size", "codes", "noise", "sigma", "tau", "beta")  # the settings that the page shows


def recorded_panel(choice: Choice) -> str:
    """What was measured of a defense, which stays in view; the adaptive attack largest."""
    summary, rows = recorded_demo(), choice.recorded
    adaptive = rows["adaptive"]
    results = "".join(
        f'<div class="{kind}"><dt>{title}</dt><dd>{percent(row.robust)}<span> %</span></dd></div>'
        for kind, title, row in (
            ("natural", "clean pictures", rows["none"]),
            ("ignorant", "attack that ignores the shield", rows["ignorant"]),
            ("adaptive", "attack through the shield", adaptive),
        )
    )
    settings = ",".join(
        f"{name}={format_value(adaptive.settings[name])}"
        for name in _MEASURED
        if name in adaptive.settings
        and (name, adaptive.settings[name]) != ("noise", "patch")  # where it usually is
    )
    defense = display_defense(f"{'swrd' if choice.defense == HARDENED else choice.defense}:{settings}")
    other = "" if choice.is_recorded else " <strong>Your settings differ and were not measured.</strong>"
    attack = adaptive.attack.replace("pgd", "PGD").replace("eot", "EOT")
    return (
        f'<section class="vq-worth" aria-label="How much the shield protects">'
        f"<h2>{escape(choice.title)} keeps right</h2><dl>{results}</dl>"
        f"<p>{adaptive.n} CIFAR-10 test images, ε = {format_value(summary.epsilon)}, mean of "
        f"{adaptive.runs} runs, {escape(defense)}; through the shield: "
        f"{escape(attack)}, and longer attacks lower it. Audit {escape(summary.audit)}.{other}</p>"
        "</section>"
    )


def answer_bars(title: str, answers: Answers, *, label: int | None) -> str:
    """A bar for every class that was answered; the true class, where it is known, in another colour."""

    def verdict(answer: int) -> str:
        return "open" if label is None else "right" if answer == label else "wrong"

    rows = "".join(
        f'<li class="vq-{verdict(answer)}">'
        f'<span class="vq-class">{escape(class_name(answer))}</span>'
        f'<span class="vq-track"><span style="width:{100 * count / answers.total():.0f}%"></span></span>'
        f'<span class="vq-count">{count} of {answers.total()}</span></li>'
        for answer, count in answers.items()
    )
    return f'<div class="vq-bars"><h3>{escape(title)}</h3><ul>{rows}</ul></div>'


def shield_answers(shielded: Shielded, choice: Choice, *, label: int | None) -> str:
    """The answers without and with the shield, and the time it took."""
    truth = (
        "" if label is None else f"<p>The picture shows: <strong>{escape(class_name(label))}</strong>.</p>"
    )
    draws = shielded.answers.total()
    return (
        f'<div class="vq-answers">{truth}{answer_bars("Without a shield", shielded.bare, label=label)}'
        f"{answer_bars(f'Behind {choice.title}, {draws} draws', shielded.answers, label=label)}"
        f'<p class="vq-quiet">{milliseconds(shielded.seconds)} to shield the picture, '
        f"{milliseconds(shielded.answering)} to shield and classify {draws} draws.</p></div>"
    )


def attack_answers(attacked: Attacked, choice: Choice) -> str:
    """What the attack changed, in a sentence and in bars."""
    label, draws = attacked.label, attacked.answers.total()
    name, bare = escape(class_name(label)), escape(class_name(next(iter(attacked.bare))))
    says = "still says" if attacked.bare == attacked.bare_before else "now says"
    known = f" (What your picture shows is not known: the attack leads away from {name}.)"
    return (
        f'<div class="vq-answers"><p class="vq-verdict">{escape(ATTACKS[attacked.kind].explanation)} '
        f"No value changed by more than {attacked.largest}/255.</p>"
        f"<p>Behind {escape(choice.title)}, {attacked.before[label]} of {draws} draws said "
        f"<strong>{name}</strong>; <strong>{attacked.answers[label]} of {draws}</strong> do now. "
        f"The bare classifier {says} {bare}.{'' if attacked.known else known}</p>"
        f"{answer_bars('Attacked, without a shield', attacked.bare, label=label)}"
        f"{answer_bars(f'Attacked, then {choice.title}', attacked.answers, label=label)}"
        f'<p class="vq-quiet">The attack took {attacked.seconds:.1f} s; the draws are fresh, it saw none of '
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
