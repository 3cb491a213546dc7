"""The table of docs/results.md about classifiers that `vqshield train` trained, from their cards."""

import recorded
from recorded import Record
from tables import table

CARDS = recorded.RESULTS / "classifiers"


def trained() -> str:
    """One line a card: plain training first, then what was trained behind a shield."""
    cards = {path.stem: recorded.load(path) for path in sorted(CARDS.glob("*.json"))}
    heads = ["card", "network", "data", "trained behind", "epochs", "peak lr", "batch", "test accuracy, %",
             "s", "machine"]  # fmt: skip
    lines = [_line(*each) for each in sorted(cards.items(), key=_order)]
    images = sorted({f"{card.test_images:,}" for card in cards.values()})
    seeds = sorted({str(card.seed) for card in cards.values()})
    return table(heads, lines, f"{' or '.join(images)} test images, seed {' or '.join(seeds)}.")


def _order(entry: tuple[str, Record]) -> tuple[bool, str]:
    return entry[1].settings.shield is not None, entry[0]


def _line(name: str, card: Record) -> list[str]:
    used = card.settings
    start = f", from {recorded.stem(used.start.file)}" if used.start else ""
    behind = f"`{used.shield}`" if used.shield else "nothing"
    method = f", `{used.method}`" if used.get("method") else ""
    return [
        name, used.arch, used.data, f"{behind}{method}{start}", str(used.epochs), f"{used.peak_lr:g}",
        str(used.batch), f"{100 * card.test_accuracy:.2f}", f"{card.seconds:.0f}",
        f"{card.device}, torch {card.torch}",
    ]  # fmt: skip
