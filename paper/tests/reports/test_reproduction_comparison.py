"""Values are compared where they are over the same images, and nowhere else."""

from dataclasses import replace

import pytest
from summaries import COLUMNS, part, row, summary, texts, value
from test_reproduction import markdown_tables

from vqshield_paper.reports import caveats, terminal_tables
from vqshield_paper.reports.comparison import Gap, distance, distances, headline, on_same_images, verdict
from vqshield_paper.reproduction.model import NO_VALUE, Column


def shield(values, **other):
    return summary(part(rows=[row("swRD (s=3, k=70)", values, **other)]))


def protocol(ours, paired, *, n=10_000, paired_n=200):
    return value(None, ours, n=n, paired=paired, paired_n=paired_n)


def suite(ours, n=200):
    return value(None, ours, n=n)


def is_red(found):
    """Whether the value of the suite is highlighted in the only row."""
    return "red" in str(next(iter(list(terminal_tables(found)[0].columns)[4].cells)).style)


def test_the_headline_is_about_the_images_that_the_suite_saw():
    found = shield({"natural": protocol(0.9, 0.8), "pgd": protocol(0.737, 0.745), "adaptive": suite(0.002)})
    assert headline(found) == (
        "On the same 200 images, swRD (s=3, k=70) has 74.5 % under the paper's protocol and 0.2 % under an "
        "adaptive attack."
    )
    assert headline(found) in caveats(found)


def test_few_images_have_no_decimals():
    found = shield({"pgd": protocol(0.8, 0.75, paired_n=8), "adaptive": suite(0.125, n=8)})
    assert "the same 8 images, swRD (s=3, k=70) has 75 % under the paper's protocol" in headline(found)
    assert headline(found).endswith("and 12 % under an adaptive attack.")


def test_the_part_is_named_where_there_are_several_and_what_stood_in():
    named = part(
        rows=[row("swRD", {"pgd": protocol(0.7, 0.6), "adaptive": suite(0.1)})], stand_in="small data"
    )
    found = summary(named, part(name="other", rows=[]))
    assert headline(found) == (
        "CIFAR-10, resnet18: on the same 200 images, swRD has 60.0 % under the paper's protocol and 10.0 % "
        "under an adaptive attack. These are other data or another classifier than the paper's."
    )


def test_what_is_far_below_is_decided_on_the_images_that_the_suite_saw(tmp_path):
    hard = shield({"pgd": protocol(0.9, 0.3), "adaptive": suite(0.28)})
    assert not is_red(hard), "these 200 images are hard for every model"
    easy = shield({"pgd": protocol(0.3, 0.9), "adaptive": suite(0.28)})
    assert is_red(easy)
    source = texts(tmp_path, easy)
    assert 'class="collapsed"' in source["html"]
    assert r"\vqfarbelow{28.0}" in source["tex"]
    assert (
        "bold: far below the accuracy under attacks that ignore the shield, on the same images."
        in source["md"]
    )
    (table,) = markdown_tables(source["md"])
    (line,) = table.values()
    assert line["PGD-20: ours (N = 10000)"] == "30.0", "the table shows the value over all images"


@pytest.mark.parametrize(
    "pgd",
    [
        value(None, 0.7, n=10_000),
        protocol(0.7, None, paired_n=None),
        protocol(0.7, 0.7, paired_n=199),
        protocol(0.7, 0.7, paired_n=None),
        protocol(0.7, 0.7, n=200, paired_n=100),
        value(None, 0.7, n=None),
        value(0.7),
    ],
)
def test_figures_over_other_images_are_not_compared(pgd):
    found = shield({"pgd": pgd, "adaptive": suite(0.01)})
    assert headline(found) is None
    assert not is_red(found)


def test_without_pairs_figures_over_as_many_images_are_compared():
    found = shield({"pgd": value(None, 0.7, n=200), "adaptive": suite(0.01)})
    assert "same 200 images, swRD (s=3, k=70) has 70.0 % under the paper's protocol" in headline(found)
    assert is_red(found)


def test_the_strongest_of_the_papers_attacks_counts():
    values = {"pgd": protocol(0.1, 0.6), "autoattack": protocol(0.2, 0.5), "adaptive": suite(0.02)}
    assert "swRD (s=3, k=70) has 50.0 %" in headline(shield(values))


def test_an_attack_without_a_value_on_these_images_might_be_the_strongest():
    values = {"pgd": protocol(0.7, 0.7), "autoattack": value(None, 0.05, n=10_000), "adaptive": suite(0.02)}
    assert headline(shield(values)) is None
    assert not is_red(shield(values))
    values["autoattack"] = value(0.05)
    assert "70.0 %" in headline(shield(values)), "a headline needs no value that was not measured"


def test_a_shield_that_holds_is_not_accused():
    sentence = headline(shield({"pgd": protocol(0.4, 0.41), "adaptive": suite(0.45)}))
    assert sentence.endswith(
        "41.0 % under the paper's protocol and no less, 45.0 % under an adaptive attack."
    )


def test_an_attack_of_the_protocol_that_knows_of_the_shield_is_compared_on_all_its_images():
    columns = [*COLUMNS[:2], Column(key="eot", title="EOT", level="eot"), COLUMNS[3]]
    values = {"pgd": protocol(0.7, 0.6), "eot": protocol(0.1, 0.3), "adaptive": suite(0.2)}
    sentence = headline(summary(part(columns=columns, rows=[row("swRD", values)])))
    assert sentence.startswith("On the same 10000 images, swRD has 70.0 %")
    assert sentence.endswith("10.0 % under an adaptive attack.")


@pytest.mark.parametrize("missing", ["adaptive", "pgd"])
def test_without_a_value_to_compare_there_is_no_sentence(missing):
    values = {"pgd": protocol(0.7, 0.7), "adaptive": suite(0.01), missing: value(0.7)}
    assert headline(shield(values)) is None


def test_neither_no_defense_nor_the_literature_is_a_shield():
    values = {"pgd": protocol(0.4, 0.4), "adaptive": suite(0.0)}
    assert headline(shield(values, defense="none")) is None
    assert headline(shield(values, literature=True)) is None


def test_a_difference_is_not_what_an_attack_leaves():
    columns = [replace(column, difference=True) for column in COLUMNS]
    values = {"pgd": value(None, 0.7, n=200), "adaptive": suite(-0.1)}
    assert headline(summary(part(columns=columns, rows=[row("swRD", values)]))) is None


@pytest.mark.parametrize(
    ("ignorant", "knowing", "far"),
    [(0.5, 0.24, True), (0.5, 0.25, False), (0.06, 0.02, False), (0.06, 0.0, True), (0.0, 0.0, False)],
)
def test_far_below_is_less_than_half_and_by_more_than_chance(ignorant, knowing, far):
    assert Gap(ignorant=ignorant, knowing=knowing, images=10).far_below == far


def test_two_figures_of_the_protocol_are_compared_on_all_images():
    assert on_same_images(protocol(0.9, 0.8), protocol(0.7, 0.6)) == (0.9, 0.7, 10_000)
    assert on_same_images(protocol(0.9, 0.8), suite(0.1)) == (0.8, 0.1, 200)
    assert on_same_images(NO_VALUE, suite(0.1)) is None
    assert on_same_images(protocol(0.9, 0.8), NO_VALUE) is None


def apart(*points, paper=0.5, **other):
    """A part whose values differ from the paper's by so many points."""
    found = [
        row(f"k={place}", {"pgd": value(paper, paper + each / 100)}) for place, each in enumerate(points)
    ]
    literature = row("Madry", {"pgd": value(0.1, 0.9)}, literature=True)
    return part(rows=[*found, literature, row("alone", {"pgd": value(None, 0.9)})], **other)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ((0, 10), "agrees"),
        ((-5, 5), "agrees"),
        ((0, 10.2), "differs"),
        ((-25, 25), "differs"),
        ((-25, 25.2), "contradicted"),
        ((), "not compared"),
    ],
)
def test_a_verdict_follows_from_the_mean_distance(points, expected):
    assert verdict(summary(apart(*points))) == expected


def test_a_distance_counts_what_both_have_and_nothing_of_other_authors():
    found = distance(apart(-2, 4))
    assert found.text == "3.0 points from the paper on average (2 values)"
    nats = part(
        unit="nats", rows=[row("k", {"pgd": value(200.0, 260.0)}), row("l", {"pgd": value(100.0, 90.0)})]
    )
    assert distance(nats).text == "23.3 % from the paper on average (2 values)"


def test_the_worst_data_set_decides_and_other_data_only_where_there_are_no_others():
    good, bad = apart(1, name="good"), apart(30, name="bad")
    replaced = apart(40, name="replaced", stand_in="small data")
    assert verdict(summary(good, bad)) == "contradicted"
    assert [found.name for found, _ in distances(summary(good, replaced, bad))] == ["bad", "good", "replaced"]
    assert verdict(summary(good, replaced)) == "agrees"
    assert verdict(summary(replaced)) == "contradicted"
