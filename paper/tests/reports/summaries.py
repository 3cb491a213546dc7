"""Small results of a reproduction, as tests of its reports need them."""

from dataclasses import replace

from vqshield_paper.reports import write_report
from vqshield_paper.reproduction.model import (
    Audited,
    ClassifierId,
    Column,
    DataId,
    GalleryPicture,
    GalleryRow,
    PaperSource,
    PartSummary,
    Row,
    Summary,
    Value,
)

HOSTILE = (
    '"><script>alert(1)</script><img src=x onerror=alert(1)> & _under_ 100% $x^2$ #1 {a} \\b ~ | *c* [d](e)'
)
PIXEL = "data:image/png;base64,iVBORw0KGgo="
COLUMNS = (
    Column(key="natural", title="natural"),
    Column(key="pgd", title="PGD-20", level="ignorant"),
    Column(key="autoattack", title="AutoAttack", level="ignorant"),
    Column(key="adaptive", title="adaptive-v1", level="adaptive"),
)


def value(paper=None, ours=None, *, n=10_000, runs=10, **other):
    return Value(paper=paper, ours=ours, n=None if ours is None else n, runs=runs, **other)


def row(title, values, *, defense="swrd:size=3", **other):
    return Row(defense=defense, title=title, values=values, **other)


def rows():
    return (
        row("no defense", {"natural": value(0.9535, 0.953), "pgd": value(0.0, 0.0)}, defense="none"),
        row(
            "swRD (s=3, k=25)",
            {
                "natural": value(0.8342, 0.775, paper_std=0.0013, std=0.002),
                "pgd": value(0.7212, 0.712, std=0.004),
                "autoattack": value(0.7109),
                "adaptive": value(None, 0.015, std=0.001),
            },
        ),
        row("Madry", {"natural": value(0.8714), "autoattack": value(0.4404)}, defense="", literature=True),
    )


def part(**other):
    fixed = {
        "name": "cifar10", "title": "CIFAR-10, ResNet18", "status": "complete",
        "data": DataId(name="cifar10", images=10_000, sha256="0123456789abcdef" * 4),
        "classifier": ClassifierId(name="resnet18", sha256="fedcba9876543210" * 4),
        "eps": 8 / 255, "norm": "linf", "columns": COLUMNS, "rows": rows(),
    }  # fmt: skip
    return PartSummary(**{**fixed, **other})


def summary(*parts, **other):
    fixed = {
        "id": "T2", "title": "Robust accuracy", "view": "table", "complete": True, "seconds": 90.0,
        "paper": PaperSource(label="tab:cifar10", caption="All defenses"),
        "machine": {"torch": "2.13.0"}, "version": "0.3.0", "commit": "4bba4c8", "seed": 17,
    }  # fmt: skip
    return Summary(**{**fixed, "parts": parts or (part(),), **other})


def gaps(*ours, **other):
    """A part like F9's: differences of accuracies, against a setting."""
    columns = (Column(key="gap", title="natural - AutoAttack", difference=True),)
    found = tuple(
        row(f"swRD (k={x})", {"gap": value(0.02, each, **other)}, series="swRD", x=float(x))
        for x, each in enumerate(ours, start=1)
    )
    return part(name="gap", columns=columns, rows=found, x_title="k")


def hostile():
    """Every text of it is hostile."""
    values = {"natural": value(0.8, 0.7), "pgd": value(0.8, 0.7), "adaptive": value(None, 0.1)}
    picture = GalleryPicture(caption=HOSTILE, image=PIXEL, verdict=HOSTILE, correct=False)
    everywhere = part(
        title=HOSTILE, why=HOSTILE, stand_in=HOSTILE, status="partial", x_title=HOSTILE,
        columns=tuple(replace(column, title=HOSTILE) for column in COLUMNS),
        data=DataId(name=HOSTILE, images=1, sha256=HOSTILE), norm=HOSTILE,
        rows=(row(HOSTILE, values, defense=HOSTILE), row("[x] _y", values, literature=True)),
        audits=(Audited(defense=HOSTILE, passed=False, lines=(HOSTILE,)),),
        gallery=(GalleryRow(label=HOSTILE, pictures=(picture,)),),
    )  # fmt: skip
    return summary(everywhere, title=HOSTILE, notes=(HOSTILE,), machine={HOSTILE: HOSTILE}, complete=False)


def written(tmp_path, found):
    return {path.name: path.read_bytes() for path in write_report(found, tmp_path)}


def texts(tmp_path, found, view="example"):
    """The three reports; an example has no plots, which take the most time."""
    files = written(tmp_path, replace(found, view=view))
    return {name: files[f"report.{name}"].decode() for name in ("html", "md", "tex")}
