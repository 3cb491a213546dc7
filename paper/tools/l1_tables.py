"""Tables of docs/certificates.md about L1 certificates and consistency training, beside published figures."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import recorded
from recorded import Classifier, Machine
from tables import machine, percent, table, unmeasured
from vqshield.certification.l1 import L1Summary
from vqshield.core.serialization import from_plain
from vqshield.core.settings import parse_spec

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "published-certificates.toml"
PICTURE = PUBLISHED.parent / "images" / "certified-norms.png"  # paper/tools/l1_plot.py draws it
MEASURED, ATTACKED = "certify-l1-cifar10-resnet18.json", "attack-l1-votes.json"
FARTHER = "attack-l1-votes-far.json"
SMALL = "certify-l1-small-cifar10"
BY_COMMAND = (("splitting", "agreeing"), ("splitting:agreement=0", "alone"))  # folders of SMALL
NOT_YET = unmeasured("paper/research/l1_certificates.py")
SHOWN = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What somebody published; certified: percent by radius."""

    norm: str
    method: str
    paper: str
    address: str
    commit: str
    files: str
    network: str
    images: int
    certified: Mapping[str, float]

    def at(self, radius: float) -> float | None:
        """As a share."""
        found = self.certified.get(f"{radius:g}")
        return None if found is None else found / 100


@dataclass(frozen=True, kw_only=True)
class Published:
    """The whole file."""

    figures: tuple[Figures, ...]


@dataclass(frozen=True, kw_only=True)
class Point:
    """Certified accuracy at a radius."""

    radius: float
    certified: float
    real: float | None = None


@dataclass(frozen=True, kw_only=True)
class Full:
    """The certificate without early stopping."""

    images: int
    draws: int
    curve: tuple[Point, ...]
    saving: float
    early_curve: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class Certified:
    """What was certified."""

    norm: str
    images: int
    accuracy: float
    right: float
    mean_radius: float
    curve: tuple[Point, ...]
    seconds: float
    shifts: int | None = None
    draws: int | None = None
    saving: float | None = None
    full: Full | None = None

    def at(self, radius: float) -> float:
        """The share certified at a radius of the curve."""
        return next(point.certified for point in self.curve if point.radius == radius)

    def real_at(self, radius: float) -> float:
        """The same for real-valued images, of a splitting."""
        return next(point.real or 0.0 for point in self.curve if point.radius == radius)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A classifier that paper/research/l1_certificates.py trained and certified."""

    defense: str
    agreement: float
    entropy: float
    after: str | None
    trained_behind: bool
    epochs: int
    training_seconds: float | None
    certified: Certified

    @property
    def scale(self) -> float:
        """λ of a splitting, σ of Gaussian noise."""
        return _scale(self.defense)

    @property
    def behind(self) -> str:
        """What stands behind the splitting."""
        if self.after is None:
            return "nothing"
        return f"`{self.after}`, " + ("trained for both" if self.trained_behind else "not trained for it")


@dataclass(frozen=True, kw_only=True)
class Record:
    """What paper/research/l1_certificates.py wrote."""

    plan: Mapping[str, object]
    environment: Machine
    rows: tuple[Row, ...]


def _scale(defense: str) -> float:
    settings = parse_spec(defense)[1]
    return float(str(settings.get("scale", settings.get("sigma"))))


def published(norm: str | None = None) -> list[Figures]:
    """What others published, of one norm or of all."""
    plain = tomllib.loads(PUBLISHED.read_text())
    found = from_plain(Published, plain, PUBLISHED.name).figures
    return [each for each in found if norm in (None, each.norm)]


def record() -> Record | None:
    """What was measured; None where nothing was yet."""
    if not (recorded.RESULTS / MEASURED).exists():
        return None
    return recorded.read(Record, MEASURED)


def published_table(norm: str, radii: Sequence[float]) -> str:
    """Published certified accuracies, with their sources."""
    figures = published(norm)
    rows = [
        [each.method, *(f"{each.certified[f'{radius:g}']:.1f}" for radius in radii), each.network,
         f"{each.images:,}", f"[{each.paper}]({each.address})"]
        for each in figures
    ]  # fmt: skip
    heads = ["method", *(f"at {radius:g}" for radius in radii), "network", "N", "source"]
    return "\n".join(table(heads, rows))


def _of_norm(found: Record | None, norm: str) -> list[Row]:
    """What was measured in a norm."""
    return [] if found is None else [row for row in found.rows if row.certified.norm == norm]


def measured_l1() -> str:
    """Every splitting that was measured."""
    found = record()
    rows = _of_norm(found, "l1")
    if found is None or not rows:
        return NOT_YET
    lines = [
        [f"{row.scale:g}", f"{row.agreement:g}", str(row.epochs), row.behind, percent(row.certified.accuracy),
         percent(row.certified.right), *(percent(row.certified.at(radius)) for radius in SHOWN),
         f"{row.certified.seconds:.0f}"]
        for row in rows
    ]  # fmt: skip
    heads = ["λ", "agreement", "epochs", "behind the splitting", "draws right", "votes right",
             *(f"at {radius:g}" for radius in SHOWN), "s"]  # fmt: skip
    picture = f"![Certified accuracy against the radius](images/{PICTURE.name})\n"
    shown = [picture] if PICTURE.exists() else []
    return "\n".join([*shown, *table(heads, lines), f"\n{_made_with(found, rows)}"])


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
    note = f"\nFirst {first.images} CIFAR-10 test images, λ = {_scale(first.manifest.defense.name):g}; "
    note += f"{machine(first.manifest.machine)}."
    return "\n".join([*table(heads, lines), note])


def best_l1() -> str:
    """The best of ours at each radius, beside the best that was published."""
    rows = _of_norm(record(), "l1")
    if not rows:
        return NOT_YET
    lines = []
    for radius in SHOWN:
        best = max(rows, key=lambda row: row.certified.at(radius))
        theirs = max(published("l1"), key=lambda each: each.at(radius) or 0)
        real = max(row.certified.real_at(radius) for row in rows)
        lines.append([
            f"{radius:g}", percent(best.certified.at(radius)), f"{best.scale:g}", percent(real),
            percent(theirs.at(radius) or 0), theirs.method,
        ])  # fmt: skip
    heads = ["L1 radius", "ours, %", "with λ", "ours, real-valued images, %", "published, %", "by"]
    return "\n".join(table(heads, lines))


def short() -> str:
    """What is certified, in a line for the README."""
    found = record()
    split, noise = _of_norm(found, "l1"), _of_norm(found, "l2")
    if not split or not noise:
        return NOT_YET

    def most(rows: Sequence[Row], radii: Sequence[float]) -> str:
        best = " / ".join(percent(max(row.certified.at(radius) for row in rows)) for radius in radii)
        return f"{best} % at {' / '.join(f'{radius:g}' for radius in radii)}"

    return (
        "- What is proved holds against every attack, within small radii. With classifiers trained for it, "
        f"splitting certifies {most(split, (0.5, 1.0, 2.0))} in L1, exactly, for 8-bit images and with a λ "
        f"chosen for each radius; Gaussian noise, without a quantizer, {most(noise, (0.25, 0.5))} in L2, but "
        f"for a chance of 0.001 an image ({split[0].certified.images:,} CIFAR-10 images). Neither reaches "
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
        [f"{row.scale:g}", f"{row.agreement:g}", str(row.epochs), percent(row.certified.right),
         *(percent(row.certified.at(radius)) for radius in radii), f"{row.certified.draws:,}",
         f"{row.certified.saving:.1f}"]
        for row in rows
    ]  # fmt: skip
    heads = ["σ", "agreement", "epochs", "votes right", *(f"at {radius:g}" for radius in radii), "n at most",
             "times fewer draws"]  # fmt: skip
    return "\n".join([*table(heads, lines), *map(_stopping, rows), f"\n{_made_with(found, rows)}"])


def _stopping(row: Row) -> str:
    full = row.certified.full
    if full is None:
        return ""
    early = {point.radius: point.certified for point in full.early_curve}
    pairs = ", ".join(
        f"{percent(early[point.radius])} and {percent(point.certified)} at {point.radius:g}"
        for point in full.curve
    )
    return (
        f"\nOf the first {full.images} images, with early stopping ({full.saving:.1f} times fewer draws) and "
        f"with all {full.draws:,} draws: {pairs} %."
    )


def _made_with(found: Record, rows: Sequence[Row]) -> str:
    plan = found.plan
    return (
        f"First {rows[0].certified.images:,} CIFAR-10 test images, ResNet18 trained from {plan['start']}, "
        f"{plan['draws']} draws of an image a step, precision {plan['precision']}, "
        f"seed {plan['seed']}; {machine(found.environment)}."
    )


@dataclass(frozen=True, kw_only=True)
class AttackPlan:
    """How votes were attacked."""

    scale: float
    steps: int
    eot: int
    outside: float


@dataclass(frozen=True, kw_only=True)
class AttackRecord:
    """What paper/research/attack_l1_votes.py wrote."""

    classifier: Classifier
    plan: AttackPlan
    certified: int
    certified_right: int
    mean_radius: float
    flipped: int
    lowest_lead: int | None
    controls: int
    flipped_outside: int
    environment: Machine


def attacked() -> str:
    """What attacks inside the certified radius achieved."""
    if not (recorded.RESULTS / ATTACKED).exists():
        return unmeasured("paper/research/attack_l1_votes.py")
    found = recorded.read(AttackRecord, ATTACKED)
    flipped = "None" if found.flipped == 0 else str(found.flipped)
    plan = found.plan
    beyond = _outside(found)
    if (recorded.RESULTS / FARTHER).exists():
        farther = recorded.read(AttackRecord, FARTHER)
        how = f"{farther.plan.steps} steps, {farther.plan.eot} shifts, {machine(farther.environment)}"
        beyond += f"; {_outside(farther)} ({how})"
    return (
        f"{found.certified} certified votes (λ = {plan.scale:g}, {found.certified_right} of them right, mean "
        f"radius {found.mean_radius:.3f}) were attacked with their own radius as budget: L1-APGD with "
        f"{plan.steps} steps, averaged over {plan.eot} shifts, and random sparse changes. **{flipped} "
        f"flipped**; the narrowest lead left was {found.lowest_lead} votes. {beyond[0].upper()}{beyond[1:]}. "
        f"{found.classifier.stem}; {machine(found.environment)}."
    )


def _outside(found: AttackRecord) -> str:
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
