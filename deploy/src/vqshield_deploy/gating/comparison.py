"""Two finished runs next to each other, with the paired difference of every result that both have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import format_value
from vqshield.reports.table import Cell, Column, Table, Tabular
from vqshield_deploy.gating.finished import FinishedRun, read_run
from vqshield_deploy.gating.statistics import PairedChange, paired_change

_SHOWN = 60  # characters of a setting's value


@dataclass(frozen=True, kw_only=True)
class ComparedRow(PairedChange):
    """A result of both runs; p_value: of the second run being worse, with no tolerance."""

    subject: str
    attack: str


@dataclass(frozen=True, kw_only=True)
class Comparison(Tabular):
    """Two runs on the same images.

    Attributes:
        before, after: their folders.
        rows: what both have measured.
        differing: the settings that differ, as "0.5 → 0.6", by their paths in the manifest.
        unmatched: results of one of them alone, as "score@500 of model: only in FOLDER".
    """

    before: str
    after: str
    data: str
    images: int
    rows: tuple[ComparedRow, ...]
    differing: Mapping[str, str]
    unmatched: tuple[str, ...]

    @property
    def table(self) -> Table:
        """A line per result."""
        return Table(
            title=f"{self.before} → {self.after}",
            columns=[
                Column("subject", "subject"),
                Column("attack", "attack"),
                Column("before", "before", "percent"),
                Column("after", "after", "percent"),
                Column("change", "change", "percent", format="+.1f"),
                Column("standard_error", "s.e.", "percent"),
                Column("changed", "images that differ", "count"),
                Column("p_value", "p (worse)", "number", format=".2g"),
            ],
            rows=[
                [
                    row.subject, row.attack, row.before, row.after, row.change, row.standard_error,
                    row.changed, Cell(row.p_value),
                ]
                for row in self.rows
            ],
            caption=f"accuracy in % of {self.images} images of {self.data}; s.e.: of the change; "
            "p: of such a drop if nothing is worse, for each row alone",
        )  # fmt: skip

    @property
    def notes(self) -> list[str]:
        """What a reader of the table must know."""
        settings = "; ".join(f"{name}: {values}" for name, values in self.differing.items())
        lines = [f"Other settings differ: {settings}."] if settings else []
        return [*lines, *(f"Not compared: {each}." for each in self.unmatched)]


def compare(before: Path | str, after: Path | str, *, radii: Sequence[float] = (0.0,)) -> Comparison:
    """Compare two finished runs of evaluate, ladder or certify, image by image.

    Args:
        before: the folder of a run.
        after: the folder of another run, of the same verb on the same images.
        radii: compare certified accuracies at these radii.

    Returns:
        For every result of both: the two accuracies, their paired difference with its standard error over
        images, and the one-sided p-value of the second being worse.

    Raises:
        InvalidInputError: the runs are of different verbs or images, or share no result.

    Example:
        >>> import tempfile
        >>> folders = [tempfile.mkdtemp() for _ in range(2)]
        >>> for folder, defense in zip(folders, ("prd", "swrd")):
        ...     _ = vq.evaluate(defense=defense, limit=8, samples=2, out=folder)
        >>> found = compare(*folders)
        >>> [(row.subject, row.attack, row.n) for row in found.rows]
        [('bare', 'clean', 8), ('model', 'clean', 8)]
    """
    first, second = read_run(before, radii=radii), read_run(after, radii=radii)
    refuse_different(first, second)
    if not first.results:
        raise InvalidInputError(f"{before} is an audit, which has no results per image; compare evaluations")
    shared = [result for result in first.results if result in second.results]
    if not shared:
        raise InvalidInputError(
            f"{before} and {after} have no result in common: "
            f"{', '.join(' of '.join(each[::-1]) for each in (*first.results, *second.results))}"
        )
    rows = tuple(
        ComparedRow(
            subject=result[0],
            attack=result[1],
            **vars(paired_change(first.results[result], second.results[result])),
        )
        for result in shared
    )
    assert first.data is not None  # it has results
    return Comparison(
        before=str(before),
        after=str(after),
        data=first.data.name,
        images=first.data.images,
        rows=rows,
        differing=differing_settings(first, second),
        unmatched=tuple(
            f"{attack} of {subject}: only in {run.folder}"
            for run in (first, second)
            for subject, attack in run.results
            if (subject, attack) not in shared
        ),
    )


def refuse_different(before: FinishedRun, after: FinishedRun) -> None:
    """Refuse runs of different verbs or images."""
    if before.kind != after.kind:
        raise InvalidInputError(
            f"{before.folder} is a run of {before.kind}, {after.folder} one of {after.kind}; compare runs of "
            "one verb"
        )
    if before.data is not None and after.data is not None and before.data.sha256 != after.data.sha256:
        data = [f"{each.images} images of {each.name}" for each in (before.data, after.data)]
        raise InvalidInputError(
            f"{before.folder} is of {data[0]}, {after.folder} of {data[1]}, which are not the same; compare "
            "runs on the same images"
        )


def differing_settings(before: FinishedRun, after: FinishedRun) -> dict[str, str]:
    """The settings that two runs do not share, as "0.5 → 0.6", by name; the commit alone is not one."""
    names = dict.fromkeys([*before.settings, *after.settings])
    values = {name: [run.settings.get(name, "absent") for run in (before, after)] for name in names}
    return {
        name: " → ".join(format_value(value)[:_SHOWN] for value in pair)
        for name, pair in values.items()
        if pair[0] != pair[1] and name != "code.commit"
    }
