"""Draw docs/images/certified-norms.png: certified accuracy against the radius in L1 and L2, published dashed.

    python paper/tools/l1_plot.py [--out FILE]

Left: every splitting of paper/results/certify-l1-cifar10-resnet18.json with nothing behind it. Right: noise.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from l1_tables import PICTURE, published, record, scale
from recorded import Record

COLOURS = ("#1a73c4", "#2e9e5b", "#d9822b", "#8e44ad", "#c0392b", "#16a085", "#7f8c8d")


def ours(row: Record) -> tuple[list[float], list[float]]:
    """A measured curve in percent, up to the last radius at which anything is certified."""
    points = [point for point in row.certified.curve if point.certified > 0]
    return [point.radius for point in points], [100 * point.certified for point in points]


def theirs(figures: Record) -> tuple[list[float], list[float]]:
    """A published curve in percent."""
    return [float(radius) for radius in figures.certified], list(figures.certified.values())


def label(row: Record) -> str:
    """What a curve is of."""
    symbol = "λ" if row.certified.norm == "l1" else "σ"
    return f"{symbol} = {scale(row.defense):g}, agreement {row.agreement:g}"


def draw(found: Record, others: Sequence[Record], target: Path) -> None:
    """Both panels in one picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(12, 5.6), sharey=True, layout="constrained")
    for panel, norm, title in zip(
        panels, ("l1", "l2"), ("L1: splitting, exact", "L2: Gaussian noise"), strict=True
    ):
        rows = [row for row in found.rows if row.certified.norm == norm and row.after is None]
        for row, colour in zip(rows, COLOURS * 2, strict=False):
            panel.plot(*ours(row), label=label(row), color=colour, linewidth=2)
        published_ones = [each for each in others if each.norm == norm]
        for each, shade in zip(published_ones, ("0.2", "0.4", "0.55", "0.7"), strict=False):
            name = f"{each.method}, {each.paper.split(',')[0]}"
            panel.plot(*theirs(each), label=name, color=shade, linestyle="--", linewidth=1.3)
        panel.set_title(title, fontsize=10)
        panel.set_xlim(left=0)
        panel.set_ylim(0, 100)
        panel.set_xlabel(f"{norm.upper()} radius")
        panel.grid(alpha=0.25)
        panel.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(-0.02, -0.12))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("certified accuracy, %")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=110, metadata={"Software": None})  # the same bytes every time


def main() -> None:
    """Read the record, draw the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=PICTURE)
    options = parser.parse_args()
    found = record()
    if found is None:
        raise SystemExit("nothing is measured yet: run paper/research/l1_certificates.py first")
    draw(found, published(), options.out)


if __name__ == "__main__":
    main()
