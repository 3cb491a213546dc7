"""The paper's values: some typed here by hand, all of them as in the paper's source where it is found."""

import math
import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.runs.arguments import defense_from
from vqshield_paper.reproduction.published import (
    PublishedValue,
    find,
    ids,
    inconsistencies,
    read_catalogue,
    section,
)

COUNTS = {
    "T1": 15, "T2": 36, "T3": 33, "T4": 10, "T5": 30, "F1": 0, "F4": 198, "F5": 48, "F6a": 36, "F6b": 44,
    "F7": 45, "F8": 78, "F9": 78, "F10": 0, "A1": 44, "E1": 0,
}  # fmt: skip

THREE = ("natural", "pgd", "autoattack")
FOUR = ("ste_pgd", "ste_autoattack", "eot_pgd", "eot_autoattack")
ROWS = [
    ("T1", "mnist", "Trades", THREE, "99.38 95.07 91.61"),
    ("T1", "mnist", "A5/O", THREE, "98.65 96.94 95.88"),
    ("T1", "mnist", "randdisc:codes=2", THREE, "99.23(0.02) 75.97(0.15) 92.36(0.12)"),
    ("T1", "mnist", "swrd:size=2,codes=2", THREE, "99.26(0.01) 97.07(0.06) 91.96(0.07)"),
    ("T2", "cifar10", "WANG", THREE, "90.27 67.28 65.45"),
    ("T2", "cifar10", "randdisc:codes=25", THREE, "89.58(0.13) 10.82(0.29) 13.92(0.41)"),
    ("T2", "cifar10", "prd:size=2,codes=70", THREE, "88.18(0.13) 36.46(0.54) 32.24(0.63)"),
    ("T2", "cifar10", "swrd:size=3,codes=25", THREE, "83.42(0.13) 75.56(0.21) 73.67(0.38)"),
    ("T3", "cifar100", "SCORE", THREE, "57.58 30.67 26.24"),
    ("T3", "cifar100", "prd:size=2,codes=25", THREE, "57.71(0.17) 40.81(0.30) 43.64(0.44)"),
    ("T3", "cifar100", "swrd:size=3,codes=35", THREE, "60.63(0.33) 50.67(0.31) 53.78(0.46)"),
    ("T3", "cifar100", "swrd:size=3,codes=90", THREE, "70.04(0.19) 42.02(0.24) 50.09(0.47)"),
    ("T4", "imagenet", "STL", ("natural", "autoattack"), "68.30 50.20"),
    ("T4", "imagenet", "Salman", ("natural", "autoattack"), "64.00 35.00"),
    ("T4", "imagenet", "randdisc:codes=30", ("natural", "autoattack"), "67.69(1.02) 46.49(0.52)"),
    ("T4", "imagenet", "prd:size=2,codes=30", ("natural", "autoattack"), "65.56(0.98) 62.36(0.97)"),
    ("T4", "imagenet", "swrd:size=3,codes=30", ("natural", "autoattack"), "69.32(0.33) 67.50(0.99)"),
    ("T5", "cifar10", "randdisc:codes=25", FOUR, "27.19(0.08) 28.39(0.11) 27.32(0.09) 27.87(0.13)"),
    ("T5", "cifar10", "swrd:size=2,codes=15", FOUR, "68.42(0.02) 68.88(0.11) 70.33(0.05) 71.44(0.04)"),
    ("T5", "cifar100", "swrd:size=2,codes=20", FOUR, "43.07(0.11) 48.28(0.06) 49.05(0.13) 50.78(0.02)"),
    ("T5", "imagenet", "prd:size=2,codes=30", FOUR[1::2], "67.12(1.04) 66.63(1.02)"),
]
NOISE = "0 2 4 6 8 10 12 14 16 18 20"
CURVES = [
    ("F4", "cifar10", "prd:size=2,codes=%s", "autoattack", "5 20 70 100", "0.4704 0.6061 0.3215 0.1503"),
    ("F4", "cifar100", "swrd:size=3,codes=%s", "natural", "5 20 70 90", "0.3667 0.5857 0.6897 0.6934"),
    ("F4", "imagenet", "randdisc:codes=%s", "natural", "5 30 40 100", "0.397 0.68 0.70 0.765"),
    ("F5", "cifar10", "swrd:size=%s,codes=25", "autoattack", "1 2 3 4", "0.1392 0.65 0.7367 0.7231"),
    ("F5", "cifar100", "prd:size=%s,codes=25", "natural", "1 2 3 4", "0.7006 0.5771 0.569 0.571"),
    ("F5", "imagenet", "prd:size=%s,codes=30", "autoattack", "1 2 3 4", "0.4649 0.6236 0.602 0.585"),
    ("F6a", "imagenet", "randdisc:codes=%s", "natural", "5 10 20 50", "0.389 0.545 0.609 0.6469"),
    ("F6a", "imagenet", "prd:size=2,codes=%s", "autoattack", "5 10 20 50", "0.20 0.355 0.439 0.5136"),
    ("F6a", "imagenet", "swrd:size=3,codes=%s", "autoattack", "5 30 40 50", "0.303 0.480 0.495 0.522"),
    ("F6b", "cifar10", "prd:size=2,codes=25,sigma=%s/255,tau=%s/255", "natural", NOISE,
     "0.7998 0.7986 0.7940 0.7913 0.7849 0.7750 0.7637 0.7550 0.7423 0.727 0.718"),
    ("F6b", "cifar10", "swrd:size=3,codes=25,sigma=%s/255,tau=%s/255", "autoattack", "0 20", "0.7356 0.696"),
    ("F7", "mnist", "swrd:size=2,codes=2", "certified", "0.0 0.1 0.2 0.3 0.4",
     "0.9947 0.9813 0.9554 0.8903 0.5702"),
    ("F7", "cifar10", "prd:size=2,codes=25", "certified", "0 2 4 6 8", "0.6250 0.4897 0.3651 0.3403 0.1902"),
    ("F7", "cifar100", "randdisc:codes=25", "certified", "0 2 8", "0.59824 0.016379 0.0"),
    ("F8", "mnist", "randdisc:codes=2", "kl", "0 0.04 0.08 0.20 0.32", "0.01 0.12 240 600 870"),
    ("F8", "cifar10", "swrd:size=3,codes=25", "kl", "0 4 8 16", "9 44.5 92 210"),
    ("F8", "imagenet", "prd:size=2,codes=30", "kl", "0 3 5 6", "65 562 1187 1432"),
    ("F9", "cifar10", "randdisc:codes=%s", "gap", "5 10 50", "0.2132 0.4652 0.7889"),
    ("F9", "cifar100", "swrd:size=3,codes=%s", "gap", "20 30 40", "0.0451 0.0441 0.0702"),
    ("F9", "imagenet", "swrd:size=%s,codes=30", "gap", "1 2 3 4", "0.2120 0.0720 0.0182 0.0020"),
    ("F9", "cifar100", "prd:size=%s,codes=25", "gap", "1 4", "0.5354 0.2740"),
    ("A1", "cifar10", "prd:size=2,codes=25,sigma=%s/255,tau=0", "autoattack", NOISE,
     "0.6013 0.6027 0.6043 0.5914 0.5880 0.5815 0.5814 0.5768 0.571 0.5689 0.5622"),
    ("A1", "cifar10", "swrd:size=3,codes=25,sigma=%s/255,tau=0", "natural", "2 20", "0.8353 0.810"),
]  # fmt: skip


def everything() -> list[tuple[str, PublishedValue]]:
    return [(id, each) for id in ids() for each in section(id).values]


def value(id: str, data: str, text: str, measure: str, x: float | None = None) -> float:
    found = find(section(id).values, data=data, defense=text, measure=measure, x=x)
    assert found is not None
    return found.value


@pytest.mark.parametrize(("id", "data", "name", "measures", "cells"), ROWS)
def test_rows_of_tables(id: str, data: str, name: str, measures: tuple[str, ...], cells: str) -> None:
    expected = []
    for measure, cell in zip(measures, cells.split(), strict=True):
        mean, _, std = cell.rstrip(")").partition("(")
        expected.append((measure, float(mean) / 100, float(std) / 100 if std else None))
    row = [
        (each.measure, pytest.approx(each.value), each.std and pytest.approx(each.std))
        for each in section(id).values
        if each.data == data and name in (each.defense, each.literature)
    ]
    assert row == expected


@pytest.mark.parametrize(("id", "data", "text", "measure", "xs", "ys"), CURVES)
def test_points_of_curves(id: str, data: str, text: str, measure: str, xs: str, ys: str) -> None:
    for x, y in zip(xs.split(), ys.split(), strict=True):
        assert value(id, data, text.replace("%s", x), measure, float(x)) == float(y)


def test_every_id_has_as_many_values_as_the_paper() -> None:
    assert {id: len(section(id).values) for id in ids()} == COUNTS
    assert all((section(id).unit == "none") == (count == 0) for id, count in COUNTS.items())


def test_values_are_fractions_or_nats() -> None:
    for id, each in everything():
        assert 0 <= each.value <= (math.inf if section(id).unit == "nats" else 1), each
        assert each.std is None or 0 < each.std < 0.02, each
        assert (each.x is None) == id.startswith("T"), each
        assert (each.defense is None) != (each.literature is None), each
    assert section("T1").values[0].value == 0.9938 != 99.38 / 100  # the float that 0.9938 is read as


def test_every_defense_can_be_created() -> None:
    texts = {each.defense for _, each in everything() if each.defense}
    for text in texts:
        assert defense_from(text, seed=0) is not None
        assert "beta" not in text
    assert {"swrd:size=3,codes=5", "prd:size=2,codes=25,sigma=4/255,tau=0"} <= texts


def test_the_order_of_settings_does_not_matter() -> None:
    values = section("A1").values
    text = "tau=0, sigma=4/255, codes=25, size=2"
    found = find(values, data="cifar10", defense=f"prd:{text}", measure="autoattack")
    assert found is not None
    assert found.value == 0.6043
    assert find(values, data="mnist", defense=f"prd:{text}", measure="autoattack") is None
    assert find(values, data="cifar10", defense=f"prd:{text}", measure="pgd") is None
    assert find(values, data="cifar10", defense=f"swrd:{text}", measure="autoattack") is None


def test_several_values_of_one_setting_are_told_apart_by_x() -> None:
    certified = {"data": "mnist", "defense": "randdisc:codes=2", "measure": "certified"}
    with pytest.raises(
        InvalidInputError, match=r"x=None leaves 5 values .* one of 0, 0\.1, 0\.2, 0\.3, 0\.4"
    ):
        find(section("F7").values, **certified)
    assert find(section("F7").values, **certified, x=0.5) is None


@pytest.mark.parametrize("look", [section, inconsistencies])
def test_an_unknown_id_is_answered_with_the_known_ones(look) -> None:
    with pytest.raises(InvalidInputError, match=r"id='T9' is unknown; choose one of A1, E1, F1, .*T5"):
        look("T9")


SECTION = 'label = "a"\ncaption = "b"\nunit = "percent"\n'
ROW = f'[T1]\n{SECTION}[[T1.rows]]\ndata = "mnist"\n'
CURVE = f'[F4]\n{SECTION}[[F4.curves]]\ndata = "mnist"\ndefense = "prd"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[T1", "file.toml is not TOML"),
        (f"[T1]\n{SECTION}colour = 1\n", r"T1 of file.toml has the unknown key 'colour'; known are"),
        ('[T1]\nlabel = "a"\nunit = "nats"\n', "T1 of file.toml has no 'caption'"),
        (f"[T1]\n{SECTION.replace('percent', 'bits')}", "T1.*unit is 'bits'; .* one of percent, fract"),
        ("T1 = 3", "is 3; it should be a table"),
        (f"[T1]\n{SECTION}rows = 3\n", "rows is 3; it should be a list"),
        (ROW + "natural = 1.0\n", "of mnist, should have one of defense and literature; it has neither"),
        (ROW + 'defense = "prd"\nliterature = "BS"\n', "one of defense and literature; it has both"),
        (ROW + 'defense = "prd"\nmaxmin = 1.0\n', r"T1 of file.toml.*rows\[0\] has the unknown key 'maxmin'"),
        (ROW + 'defense = "prd"\npgd_std = 0.1\n', "pgd_std=0.1 but no pgd"),
        (ROW + 'defense = "prd"\npgd = "much"\n', r"rows\[0\].pgd is 'much'; it should be a finite number"),
        (ROW + 'defense = "prd"\npgd = nan\n', r"rows\[0\].pgd is nan; it should be a finite number"),
        (ROW.replace("mnist", "svhn") + 'defense = "prd"\n', r"rows\[0\].data is 'svhn'; .* of mnist, cif"),
        (CURVE + 'measure = "kl"\nx = [1, 2]\ny = [1]\n', "has 2 x and 1 y"),
        (CURVE + 'measure = "pgd"\nx = [1]\ny = [1]\n', r"curves\[0\].measure is 'pgd'; .* of natural, auto"),
        ('[[inconsistencies]]\nids = ["T7"]\ntext = "no"\n', "ids='T7' in .*inconsistencies"),
        ("inconsistencies = 1\n", "is 1; it should be a list"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        read_catalogue(text, source="file.toml")


def said(id: str, *parts: str) -> bool:
    return any(all(part in text for part in parts) for text in inconsistencies(id))


def test_the_certificates_exceed_their_bound() -> None:
    most = 1 - math.sqrt(2 * math.log(1 / 0.005) / 1000)
    above = [each.value for each in section("F7").values if each.value > most]
    assert (round(most, 3), len(above), max(above)) == (0.897, 8, 0.9947)
    assert said("F7", ".897", "eight", ".9947")
    bounds = [(0.2 + math.sqrt(2 * math.log(1 / delta) / 100)) / 0.9 for delta in (0.05, 0.005)]
    assert said("E1", *(f"{bound:.3f}".lstrip("0") for bound in bounds))


def test_the_gaps_are_not_those_of_the_curves_on_cifar() -> None:
    off: dict[str, float] = {}
    for each in section("F9").values:
        curve = {"data": each.data, "text": each.defense, "x": each.x}
        source = "F4" if each.x >= 5 else "F5"
        gap = value(source, **curve, measure="natural") - value(source, **curve, measure="autoattack")
        key = f"{source} {each.data}"
        off[key] = max(off.get(key, 0), round(abs(gap - each.value), 4))
    exact = dict.fromkeys(["F4 imagenet", "F5 cifar10", "F5 cifar100", "F5 imagenet"], 0)
    assert off == {"F4 cifar10": 0.1605, "F4 cifar100": 0.1252, **exact}
    assert said("F9", ".2373", ".3978", ".1729", ".2981")


def test_noise_once_against_noise_twice() -> None:
    signs: dict[str, list[int]] = {"natural": [], "autoattack": []}
    for once, twice in zip(section("A1").values, section("F6b").values, strict=True):
        assert (once.measure, once.x) == (twice.measure, twice.x)
        if once.x:
            signs[once.measure].append((once.value > twice.value) - (once.value < twice.value))
    counts = {measure: [each.count(sign) for sign in (1, -1, 0)] for measure, each in signs.items()}
    assert counts == {"natural": [2, 14, 4], "autoattack": [14, 4, 2]}
    assert said("A1", "above twice (F6b) at 14", "below at 4", "below at 14 and above at 2")
    assert said("F6b", "at 6 of the 40")


DATA = {"MNIST": "mnist", "CIFAR10": "cifar10", "CIFAR100": "cifar100", "ImageNet": "imagenet"}
PLOTTED = {"black": "randdisc", "orange": "prd", "cyan": "swrd"}
PLACES = {"$k$": "codes", "$s$": "size", "Noise level": "sigma"}
"""By the axis' label, the setting that x is filled into."""
TABLES = ("T1", "T2", "T3", "T4")
FIGURES = ("F4", "F5", "F6b", "F7", "F8", "F9", "A1")
POINT = re.compile(r"\(([\d.]+),([\d.]+)\)(?:\s*\[(\d+)\])?")


@pytest.fixture
def paper(shared: Path) -> str:
    """The source of the paper."""
    path = shared / "paper.tex"
    if not path.is_file():
        pytest.skip("no paper.tex in the folder 'shared' next to the checkout")
    return path.read_text(encoding="utf-8")


def as_written() -> dict:
    """published.toml with every number that has a point as the text it is: 0.8590, not 0.859."""
    file = resources.files("vqshield_paper.reproduction.paper") / "published.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"), parse_float=str)


def labelled(paper: str, kind: str, label: str) -> str:
    found = re.findall(rf"\\begin{{{kind}}}.*?\\end{{{kind}}}", paper, re.DOTALL)
    (body,) = [each for each in found if f"\\label{{{label}}}" in each]
    return body


def lines_of_table(paper: str, label: str) -> list[list[str]]:
    body = labelled(paper, "table", label).split(r"\hline\hline")[1].split(r"\end{tabular}")[0]
    body = re.sub(r"\\hline|\\cline{[\d-]+}", "", body)
    body = re.sub(r"\\textbf{([\d.]+)}|\\multirow{\d+}\*{(\w+)}", r"\1\2", body)
    lines = [[" ".join(cell.split()) for cell in line.split("&")] for line in body.split(r"\\")]
    return [line for line in lines if len(line) > 1]


def cell_of(row: dict, measure: str) -> str:
    std = row.get(f"{measure}_std")
    return row[measure] + (f"({std})" if std else "")


@pytest.mark.parametrize("id", TABLES)
def test_the_tables_are_those_of_the_source(paper: str, id: str) -> None:
    written, found = as_written()[id], []
    for row in written["rows"]:
        name = row.get("literature", "").replace("A5/O", "$A^5/O$")
        if "defense" in row:
            kind, _, settings = row["defense"].partition(":")
            shown = {"randdisc": "RandDisc", "prd": "pRD", "swrd": "swRD"}[kind]
            size, codes = re.fullmatch(r"(?:size=(\d+),)?codes=(\d+)", settings).groups(default="1")
            name = f"{shown} ($s$={size}, $k$={codes})"
        found.append([name, *(cell_of(row, measure) for measure in THREE if measure in row)])
    assert found == lines_of_table(paper, written["label"])


def test_the_table_of_adaptive_attacks_is_that_of_the_source(paper: str) -> None:
    written, expected, heads = as_written()["T5"], {}, ["", "", ""]
    for *columns, name, cell in lines_of_table(paper, written["label"]):
        heads = [old if new == "~" else new for old, new in zip(heads, columns, strict=True)]
        data, technique, attack = heads
        expected[DATA[data], name.lower(), f"{technique}_{attack}".lower()] = cell
    found = {
        (row["data"], row["defense"].partition(":")[0], measure): cell_of(row, measure)
        for row in written["rows"]
        for measure in FOUR
        if measure in row
    }
    assert found == expected


def plots(paper: str, label: str) -> list[tuple[str, str, str, list[tuple[str, str, str]]]]:
    """Title, options of the axis, options of the curve, points (x, y, mark) of everything plotted."""
    found = []
    for axis in re.findall(r"\\begin{axis}.*?\\end{axis}", labelled(paper, "figure", label), re.DOTALL):
        title = re.search(r"title={\(\w\) (.*)},", axis)
        for options, points in re.findall(r"\\addplot\+\[(.*?)\]\s*coordinates {(.*?)};", axis, re.DOTALL):
            found.append((title.group(1) if title else "", axis, options, POINT.findall(points)))
    return found


@pytest.mark.parametrize("id", FIGURES)
def test_the_curves_are_those_of_the_source(paper: str, id: str) -> None:
    written, expected = as_written()[id], []
    for title, axis, options, points in plots(paper, written["label"]):
        if id == "F6b" and title != "Effects of the Noise":
            continue
        robust = {"F7": "certified", "F8": "kl", "F9": "gap"}.get(id, "autoattack")
        measure = "natural" if "triangle" in options else robust
        place = next((each for sign, each in PLACES.items() if f"xlabel={{{sign}}}" in axis), "")
        data = DATA.get(title, "cifar10")
        expected.append((data, PLOTTED[options.partition(",")[0]], measure, place, [p[:2] for p in points]))
    found = []
    for curve in written["curves"]:
        points = [(str(x), str(y)) for x, y in zip(curve["x"], curve["y"], strict=True)]
        kind, _, settings = curve["defense"].partition(":")
        place = "".join(re.findall(r"(codes|size|sigma)={x}", settings))
        found.append((curve["data"], kind, curve["measure"], place, points))
    assert found == expected


def test_the_trade_off_is_that_of_the_source(paper: str) -> None:
    written, expected = as_written()["F6a"], []
    for title, _, options, points in plots(paper, written["label"]):
        if title.startswith("Trade-off"):
            name = PLOTTED[options.partition(",")[0]]
            codes = [mark for _, _, mark in points]
            expected.append((name, "natural", codes, [natural for natural, _, _ in points]))
            expected.append((name, "autoattack", codes, [robust for _, robust, _ in points]))
    found = [
        (curve["defense"].partition(":")[0], curve["measure"], [str(x) for x in curve["x"]], curve["y"])
        for curve in written["curves"]
    ]
    assert found == expected


def test_no_point_of_the_source_is_left_out(paper: str) -> None:
    points = sum(len(POINT.findall(body)) for body in re.findall(r"coordinates\s*{(.*?)};", paper, re.DOTALL))
    assert points == sum(COUNTS[id] for id in FIGURES) + COUNTS["F6a"] // 2
    assert paper.count(r"\addplot") == sum(len(as_written()[id]["curves"]) for id in FIGURES) + 3


def test_every_label_is_in_the_source(paper: str) -> None:
    for id in ids():
        assert f"\\label{{{section(id).label}}}" in paper
