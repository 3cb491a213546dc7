"""The table of docs/results.md about classifiers that `vqshield train` trained, from their cards."""

from dataclasses import dataclass

from recorded import RESULTS, read

CARDS = RESULTS / "classifiers"


@dataclass(frozen=True)
class Start:
    """The weights that training began with."""

    file: str


@dataclass(frozen=True)
class Settings:
    """The settings of a training that the table shows."""

    arch: str
    data: str
    epochs: int
    peak_lr: float
    batch: int
    shield: str | None
    start: Start | None
    method: str | None = None


@dataclass(frozen=True)
class Card:
    """What the table shows of a trained classifier's card."""

    settings: Settings
    seed: int
    test_images: int
    test_accuracy: float
    seconds: float
    device: str
    torch: str


def trained() -> str:
    """One line a card: plain training first, then what was trained behind a shield."""
    cards = {path.stem: read(Card, path) for path in sorted(CARDS.glob("*.json"))}
    lines = [
        "| card | network | data | trained behind | epochs | peak lr | batch | test accuracy, % | s "
        "| machine |",
        "|---" * 10 + "|",
    ]
    lines += [_line(*each) for each in sorted(cards.items(), key=_order)]
    images = sorted({f"{card.test_images:,}" for card in cards.values()})
    seeds = sorted({str(card.seed) for card in cards.values()})
    lines.append(f"\n{' or '.join(images)} test images, seed {' or '.join(seeds)}.")
    return "\n".join(lines)


def _order(entry: tuple[str, Card]) -> tuple[bool, str]:
    return entry[1].settings.shield is not None, entry[0]


def _line(name: str, card: Card) -> str:
    used = card.settings
    start = f", from {used.start.file.removesuffix('.safetensors')}" if used.start else ""
    behind = f"`{used.shield}`" if used.shield else "nothing"
    method = f", `{used.method}`" if used.method else ""
    return (
        f"| {name} | {used.arch} | {used.data} | {behind}{method}{start} | {used.epochs} | {used.peak_lr:g} "
        f"| {used.batch} | {100 * card.test_accuracy:.2f} | {card.seconds:.0f} "
        f"| {card.device}, torch {card.torch} |"
    )
