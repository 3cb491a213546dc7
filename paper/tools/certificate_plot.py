"""Draw docs/images/certified-radius.png: certified accuracy against the L2 radius, one panel a noise level.

    python paper/tools/certificate_plot.py [--record FILE] [--out FILE]

A panel holds what is compared at equal sigma_eff, less what copied pixels cost: plain Gaussian smoothing, and
for every place of the noise the quantizer with the largest mean radius, each with the classifier as given
(dashed) and fine-tuned (solid).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import recorded
from radius_tables import CURVES, WHERE, is_gaussian, is_tuned
from recorded import Record
from tables import named

ROOT = Path(__file__).resolve().parents[2]
COLOURS = {"gaussian": "#444444", "shared": "#1a73c4", "image": "#2e9e5b", "patch": "#d9822b"}


def lines(rows: Sequence[Record]) -> list[Record]:
    """The curves of a panel: of each kind of noise and of classifier the row with the largest mean radius."""
    best: dict[tuple[str, bool], Record] = {}
    for row in rows:
        kind = row.noise, is_tuned(row)
        if kind not in best or row.mean_radius > best[kind].mean_radius:
            best[kind] = row
    return [best[kind] for kind in sorted(best, key=lambda kind: (list(COLOURS).index(kind[0]), kind[1]))]


def label(row: Record) -> str:
    """What a curve is of."""
    tuned = ", fine-tuned" if is_tuned(row) else ""
    if is_gaussian(row):
        return f"Gaussian noise alone{tuned}"
    copied = f", {row.sigma_eff:.3g} on each" if row.copies > 1 else ""
    return f"{named(row.defense, row.settings)}, {WHERE[row.noise]}{copied}{tuned}"


def steps(row: Record) -> tuple[list[float], list[float]]:
    """The curve in percent, up to the first radius at which nothing is certified."""
    radii, shares = [], []
    for point in row.curve:
        radii.append(point.radius)
        shares.append(100 * point.certified)
        if point.certified == 0:
            break
    return radii, shares


def draw(record: Record, target: Path) -> None:
    """All panels in one picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    levels = sorted({row.level for row in record.rows})
    across = min(2, len(levels))
    down = -(-len(levels) // across)
    figure, axes = plt.subplots(
        down, across, figsize=(6 * across, 4.6 * down), squeeze=False, sharey=True, layout="constrained"
    )
    for panel in axes.flat[len(levels) :]:
        panel.set_visible(False)
    for panel, level in zip(axes.flat, levels, strict=False):
        for row in lines([row for row in record.rows if row.level == level]):
            panel.plot(
                *steps(row),
                label=label(row),
                drawstyle="steps-pre",  # between two radii at least what the larger one has
                color=COLOURS[row.noise],
                linestyle="-" if is_tuned(row) else "--",
                linewidth=2 if is_tuned(row) else 1.3,
            )
        panel.set_title(f"sigma_eff = {level:g}", fontsize=10)
        panel.set_xlim(left=0)
        panel.set_ylim(0, 100)
        panel.set_xlabel("L2 radius")
        panel.grid(alpha=0.25)
        # Under the panel: inside, it would cover curves that stay high.
        panel.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(-0.02, -0.13))
        panel.spines[["top", "right"]].set_visible(False)
    for line in axes:
        line[0].set_ylabel("certified accuracy, %")
    figure.suptitle(
        f"Majority votes of {record.data.images} CIFAR-10 test images certified within an L2 radius "
        f"(n = {record.plan.n}, alpha = {record.plan.alpha:g})",
        fontsize=11,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    plain = {"Software": None} if target.suffix == ".png" else {"Date": None}  # the same bytes every time
    figure.savefig(target, dpi=110, metadata=plain)


def main() -> None:
    """Read the record, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, default=recorded.RESULTS / CURVES)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "certified-radius.png")
    options = parser.parse_args()
    draw(recorded.load(options.record.absolute()), options.out)


if __name__ == "__main__":
    main()
