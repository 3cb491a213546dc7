"""Tables of docs/certificates.md about L1 certificates and consistency training, with published values."""

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import recorded
from recorded import Record
from tables import machine, percent, table, unmeasured
from vqshield.certification.summary import L1Summary
from vqshield.core.settings import parse_spec

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "published-certificates.toml"
PICTURE = PUBLISHED.parent / "images" / "certified-norms.png"  # paper/tools/l1_plot.py draws it
MEASURED, ATTACKED = "certify-l1-cifar10-resnet18.json", "attack-l1-votes.json"
FARTHER = "attack-l1-votes-far.json"
SMALL = "certify-l1-small-cifar10"
BY_COMMAND = (("splitting", "agreeing"), ("splitting:agreement=0", "alone"))  # folders of SMALL
NOT_YET = unmeasured("paper/research/l1_certificates.py")
SHOWN = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)


def scale(defense: str) -> float:
    """λ of a splitting, σ of Gaussian noise."""
    settings = parse_spec(defense)[1]
    return float(str(settings.get("scale", settings.get("sigma"))))


def published(norm: str | None = None) -> list[Record]:
    """What others published, of one norm or of all."""
    found = tomllib.loads(PUBLISHED.read_text())["figures"]
    return [Record(each) for each in found if norm in (None, each["norm"])]


def record() -> Record | None:
    """What was measured; None where nothing was yet."""
    if not (recorded.RESULTS / MEASURED).exists():
        return None
    return recorded.load(MEASURED)


def published_table(norm: str, radii: Sequence[float]) -> str:
    """Published certified accuracies, with their sources."""
    figures = published(norm)
    rows = [
        [each.method, *(f"{each.certified[f'{radius:g}']:.1f}" for radius in radii), each.network,
         f"{each.images:,}", f"[{each.paper}]({each.address})"]
        for each in figures
    ]  # fmt: skip
    heads = ["method", *(f"at {radius:g}" for radius in radii), "network", "N", "source"]
    return table(heads, rows)


def _of_norm(found: Record | None, norm: str) -> list[Record]:
    """What was measured in a norm."""
    return [] if found is None else [row for row in found.rows if row.certified.norm == norm]


def _at(row: Record, radius: float, what: str = "certified") -> float:
    """The share certified at a radius of the curve; "real": of real-valued images, for a splitting."""
    return next(point.get(what) or 0.0 for point in row.certified.curve if point.radius == radius)


def _behind(row: Record) -> str:
    """What stands behind the splitting."""
    if row.after is None:
        return "nothing"
    return f"`{row.after}`, " + ("trained for both" if row.trained_behind else "not trained for it")


def measured_l1() -> str:
    """Every splitting that was measured."""
    found = record()
    rows = _of_norm(found, "l1")
    if found is None or not rows:
        return NOT_YET
    lines = [
        [f"{scale(row.defense):g}", f"{row.agreement:g}", str(row.epochs), _behind(row),
         percent(row.certified.accuracy), percent(row.certified.right),
         *(percent(_at(row, radius)) for radius in SHOWN), f"{row.certified.seconds:.0f}"]
        for row in rows
    ]  # fmt: skip
    heads = ["λ", "agreement", "epochs", "behind the splitting", "draws right", "votes right",
             *(f"at {radius:g}" for radius in SHOWN), "s"]  # fmt: skip
    picture = f"![Certified accuracy against the radius](images/{PICTURE.name})\n\n"
    return (picture if PICTURE.exists() else "") + table(heads, lines, _made_with(found, rows))


def by_command() -> str:
    """The bundled network, hardened and certified by the commands."""
    summaries = [
        (method, recorded.read(L1Summary, f"{SMALL}/{name}/summary.json")) for method, name in BY_COMMAND
    ]
    first = summaries[0][1]
    radii = [point.radius for point in first.curve]
    lines = [
        [f"`--method {method}`", percent(found.accuracy), percent(found.right),
         *(percent(point.certified) for point in found.curve), f"{found.seconds:.0f}"]
        for method, found in summaries
    ]  # fmt: skip
    heads = ["", "draws right", "votes right", *(f"at {radius:g}" for radius in radii), "s"]
    note = f"First {first.images} CIFAR-10 test images, λ = {scale(first.manifest.defense.name):g}; "
    note += f"{machine(first.manifest.machine)}."
    return table(heads, lines, note)


def best_l1() -> str:
    """The best of ours at each radius, and the best that was published."""
    rows = _of_norm(record(), "l1")
    if not rows:
        return NOT_YET
    lines = []
    for radius in SHOWN:
        best = max(rows, key=lambda row: _at(row, radius))
        theirs = max(published("l1"), key=lambda each: each.certified.get(f"{radius:g}", 0))
        real = max(_at(row, radius, "real") for row in rows)
        lines.append([
            f"{radius:g}", percent(_at(best, radius)), f"{scale(best.defense):g}", percent(real),
            f"{theirs.certified.get(f'{radius:g}', 0):.1f}", theirs.method,
        ])  # fmt: skip
    heads = ["L1 radius", "ours, %", "with λ", "ours, real-valued images, %", "published, %", "by"]
    return table(heads, lines)


def short() -> str:
    """What is certified, in a line for the README."""
    found = record()
    split, noise = _of_norm(found, "l1"), _of_norm(found, "l2")
    if not split or not noise:
        return NOT_YET

    def most(rows: Sequence[Record], radii: Sequence[float]) -> str:
        best = " / ".join(percent(max(_at(row, radius) for row in rows)) for radius in radii)
        return f"{best} % at {' / '.join(f'{radius:g}' for radius in radii)}"

    return (
        "- What is proved holds against every attack, within small radii. With classifiers trained for it, "
        f"splitting certifies {most(split, (0.5, 1.0, 2.0))} in L1, exactly, for 8-bit images and with a λ "
        f"chosen for each radius; Gaussian noise, without a quantizer, {most(noise, (0.25, 0.5))} in L2, at "
        f"99.9 % confidence per image ({split[0].certified.images:,} CIFAR-10 images). Neither reaches "
        "8/255 in L∞. See "
        "[docs/certificates.md](docs/certificates.md#6-the-exact-l1-certificate)."
    )


def measured_l2() -> str:
    """Gaussian noise with consistency training, and what early stopping saves."""
    found = record()
    rows = _of_norm(found, "l2")
    if found is None or not rows:
        return NOT_YET
    radii = [point.radius for point in rows[0].certified.curve]
    lines = [
        [f"{scale(row.defense):g}", f"{row.agreement:g}", str(row.epochs), percent(row.certified.right),
         *(percent(_at(row, radius)) for radius in radii), f"{row.certified.draws:,}",
         f"{row.certified.saving:.1f}"]
        for row in rows
    ]  # fmt: skip
    heads = ["σ", "agreement", "epochs", "votes right", *(f"at {radius:g}" for radius in radii), "n at most",
             "times fewer draws"]  # fmt: skip
    stopping = [_stopping(row) for row in rows if row.certified.get("full")]
    return table(heads, lines, *stopping, _made_with(found, rows))


def _stopping(row: Record) -> str:
    full = row.certified.full
    early = {point.radius: point.certified for point in full.early_curve}
    pairs = ", ".join(
        f"{percent(early[point.radius])} and {percent(point.certified)} at {point.radius:g}"
        for point in full.curve
    )
    return (
        f"Of the first {full.images} images, with early stopping ({full.saving:.1f} times fewer draws) and "
        f"with all {full.draws:,} draws: {pairs} %."
    )


def _made_with(found: Record, rows: Sequence[Record]) -> str:
    plan = found.plan
    return (
        f"First {rows[0].certified.images:,} CIFAR-10 test images, ResNet18 trained from {plan['start']}, "
        f"{plan['draws']} draws of an image a step, precision {plan['precision']}, "
        f"seed {plan['seed']}; {machine(found.environment)}."
    )


def attacked() -> str:
    """What attacks inside the certified radius achieved."""
    if not (recorded.RESULTS / ATTACKED).exists():
        return unmeasured("paper/research/attack_l1_votes.py")
    found = recorded.load(ATTACKED)
    flipped = "None" if found.flipped == 0 else str(found.flipped)
    plan = found.plan
    beyond = _outside(found)
    if (recorded.RESULTS / FARTHER).exists():
        farther = recorded.load(FARTHER)
        how = f"{farther.plan.steps} steps, {farther.plan.eot} shifts, {machine(farther.environment)}"
        beyond += f"; {_outside(farther)} ({how})"
    return (
        f"{found.certified} certified votes (λ = {plan.scale:g}, {found.certified_right} of them right, mean "
        f"radius {found.mean_radius:.3f}) were attacked with their own radius as budget: L1-APGD with "
        f"{plan.steps} steps, averaged over {plan.eot} shifts, and random sparse changes. **{flipped} "
        f"flipped**; the narrowest lead left was {found.lowest_lead} votes. {beyond[0].upper()}{beyond[1:]}. "
        f"{recorded.stem(found.classifier.name)}; {machine(found.environment)}."
    )


def _outside(found: Record) -> str:
    return f"with {found.plan.outside:g} times the budget {found.flipped_outside} of {found.controls} did"


L1_TABLES: dict[str, Callable[[], str]] = {
    "published-l1": lambda: published_table("l1", SHOWN),
    "published-l2": lambda: published_table("l2", (0.0, 0.25, 0.5, 0.75)),
    "certified-l1": measured_l1,
    "certified-l1-best": best_l1,
    "certified-l1-small": by_command,
    "certified-l1-short": short,
    "certified-l2-consistency": measured_l2,
    "certified-l1-attacked": attacked,
}
