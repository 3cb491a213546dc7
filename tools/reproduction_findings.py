"""Sentences and small tables of docs/reproduction.md about T1 to T4: what lies behind the differences."""

from collections.abc import Callable
from typing import Any

from certificate_tables import machine, percent, table
from reproduction_records import (
    RECIPE,
    RESULTS,
    Part,
    cell,
    compared,
    differences,
    images,
    listed,
    mean_distance,
    most_left,
    part,
    read,
    row,
    rows,
    signed,
)

BARE = "none"
BACKGROUND = "mnist-background.json"
CLUSTERING = "clustering-quality-cifar10.json"
# What the paper says of its own classifiers: test accuracy in percent.
PAPER_CLASSIFIERS = {"T1": 99.40, "T2": 95.16, "T3": 82.05, "T4": 84.23}


def background() -> str:
    """Why T1 fails under attack: what classifiers make of digits that do not stand on black."""
    if not (RESULTS / BACKGROUND).is_file():
        return "Not measured yet."
    record = read(BACKGROUND)
    raised = [f"{each['background']:g}" for each in record["rows"][0]["raised"]]
    heads = ["classifier", *(f"background {level}" for level in raised), "attacked", "then quantized",
             "then stretched to 0…1"]  # fmt: skip
    lines = table(heads, [_answers(each) for each in record["rows"]])
    return "\n".join(
        [
            *lines,
            f"\nRight answers in %; in brackets the most frequent answer and its share. First "
            f"{record['data']['images']:,} MNIST test images, attack `{record['attack']}` at "
            f"ε = {record['eps']:g}, shield `{record['defense']}`, seed {record['seed']}; "
            f"{machine(record['environment'])}.",
            *(f"\n{_grey(each)}" for each in record["rows"]),
        ]
    )


def _answers(found: dict[str, Any]) -> list[str]:
    kinds = [*found["raised"], *(found[name] for name in ("attacked", "quantized", "stretched"))]
    cells = [
        f"{percent(each['right'])} ({each['most_frequent']}: {percent(each['its_share'])})" for each in kinds
    ]
    return [str(found["name"]).removesuffix(".safetensors"), *cells]


def _grey(found: dict[str, Any]) -> str:
    name, after = str(found["name"]).removesuffix(".safetensors"), found["background"]
    return (
        f"{name}: pixels that were black are at {after['attacked']:.2f} on average after the attack and at "
        f"{after['quantized']:.2f} after the quantizer. Quantized, {percent(found['quantized']['right'])} % "
        f"of the digits are right and {percent(found['quantized']['its_share'])} % are called "
        f"{found['quantized']['most_frequent']}; stretched back to 0…1, "
        f"{percent(found['stretched']['right'])} % are right."
    )


def trained() -> str:
    """T1: our classifier, which was not trained as the paper's was."""
    card = read("classifiers/resnet18-mnist.json")
    used = card["settings"]
    return (
        f"Our ResNet18 was trained for {used['epochs']} epochs with a peak learning rate of "
        f"{used['peak_lr']:g} and has {100 * card['test_accuracy']:.2f} % on the test set; the paper's, for "
        f"25 epochs with 0.001, has {PAPER_CLASSIFIERS['T1']:.2f} %."
    )


def classifiers() -> str:
    """T2 with both classifiers beside the paper's."""
    given, recipe = part("T2"), part("T2", RECIPE)
    keys = [(key, title) for key, title, _ in compared(given)]
    heads = [
        "accuracy in %",
        *(f"{title}: {who}" for _, title in keys for who in ("paper", "given", "recipe")),
    ]
    lines = []
    for each in rows(given):
        other = row(recipe, each["defense"])
        cells = [
            figure
            for key, _ in keys
            for figure in (
                shown_percent(cell(each, key)["paper"]),
                shown_percent(cell(each, key)["ours"]),
                shown_percent(cell(other, key)["ours"]),
            )
        ]
        lines.append([each["title"], *cells])
    card = read("classifiers/resnet18-cifar10-paper-recipe.json")
    used = card["settings"]
    apart = "; ".join(
        f"{title} {mean_distance(differences(given, key)):.1f} and "
        f"{mean_distance(differences(recipe, key)):.1f}, the two from each other "
        f"{_between(given, recipe, key):.1f}"
        for key, title in keys
    )
    bare = row(recipe, BARE)
    return "\n".join(
        [
            *table(heads, lines),
            f"\nGiven: N = {images(given):,}. Recipe: {used['epochs']} epochs, one-cycle SGD with peak "
            f"{used['peak_lr']:g}, batch {used['batch']}, N = {images(recipe):,}, no adaptive figure; "
            f"{100 * card['test_accuracy']:.1f} % on the whole test set, where the paper's has "
            f"{PAPER_CLASSIFIERS['T2']:.2f} %.",
            f"\nMean distance from the paper, given and recipe: {apart} points. PGD leaves the bare recipe "
            f"classifier {percent(cell(bare, 'pgd')['ours'])} %, AutoAttack "
            f"{percent(cell(bare, 'autoattack')['ours'])} %.",
        ]
    )


def shown_percent(value: float | None) -> str:
    """In percent, or a dash."""
    return "–" if value is None else percent(value)


def _between(one: Part, other: Part, key: str) -> float:
    """Over the rows that the mean distances from the paper are over."""
    shown = [each for each in rows(one) if each["title"] in differences(one, key)]
    apart = [abs(cell(each, key)["ours"] - cell(row(other, each["defense"]), key)["ours"]) for each in shown]
    return 100 * float(sum(apart)) / len(apart)


def clustering() -> str:
    """pRD without attack, with codebooks of different quality."""
    record = read(CLUSTERING)
    names = [str(each["name"]) for each in record["classifiers"]]
    heads = ["k-means", "mean squared error", *(f"{name.removesuffix('.safetensors')}, %" for name in names)]
    lines = table(
        heads,
        [
            [each["clustering"], f"{each['mean_squared_error']:.5f}"]
            + [percent(each["accuracy"][name]) for name in names]
            for each in record["rows"]
        ],
    )
    return "\n".join(
        [
            *lines,
            f"\nNatural accuracy behind `{record['defense']}`, first {record['data']['images']:,} test "
            f"images, one run, seed {record['seed']}; {machine(record['environment'])}.",
        ]
    )


def protocol() -> str:
    """T2: the paper's protocol, and what is left of it."""
    found = part("T2")
    furthest = max(abs(delta) for _, _, deltas in compared(found) for delta in deltas.values())
    best = {
        title: [
            max((each for each in rows(found) if cell(each, key)["paper"]), key=_by(key, who))["title"]
            for who in ("paper", "ours")
        ]
        for key, title, _ in compared(found)
        if key != "natural"
    }
    tops = "; ".join(f"{title}: {paper} in the paper, {ours} here" for title, (paper, ours) in best.items())
    return (
        f"No cell is further from the paper than {furthest:.1f} points. Best under attack: {tops}. Attacks "
        f"that know of the shield leave at most {most_left(found):.1f} %."
    )


def _by(key: str, who: str) -> Callable[[dict[str, Any]], float]:
    return lambda each: float(cell(each, key)[who])


def codes() -> str:
    """T3: does k = 25 or k = 35 meet the paper's row?"""
    found = part("T3")
    paper = row(found, "swrd:size=3,codes=35")
    keys = [key for key, _, deltas in compared(found) if deltas]
    shown = []
    for title, each in (("k = 25", row(found, "swrd:size=3,codes=25")), ("k = 35", paper)):
        deltas = [100 * (cell(each, key)["ours"] - cell(paper, key)["paper"]) for key in keys]
        shown.append(f"{title} {listed(map(signed, deltas))}")
    names = listed(title for _, title, deltas in compared(found) if deltas)
    return (
        f"swRD against the paper's row for k = 35 ({names}): {'; '.join(shown)} points. The classifier has "
        f"{percent(cell(row(found, BARE), 'natural')['ours'])} % on these images, the paper's "
        f"{PAPER_CLASSIFIERS['T3']:.2f} % on the test set. Attacks that know of the shield leave at most "
        f"{most_left(found):.1f} %."
    )


def readings() -> str:
    """T4: both readings of beta, and the stand-ins."""
    found = part("T4")
    one, other = (row(found, f"swrd:size=3,codes=30,beta={beta}") for beta in ("6502.5", "0.1"))
    apart = [
        f"{title} {signed(100 * (cell(one, key)['ours'] - cell(other, key)['ours']))}"
        for key, title, _ in compared(found)
    ]
    return (
        f"β = 6502.5 less β = 0.1: {listed(apart)} points. Without a shield {found['classifier']['name']} "
        f"has {percent(cell(row(found, BARE), 'natural')['ours'])} % on the {images(found):,} images of "
        f"{found['data']['name']}; the paper's classifier has {PAPER_CLASSIFIERS['T4']:.2f} % on ImageNet. "
        f"Attacks that know of the shield leave at most {most_left(found):.1f} %."
    )


FINDINGS: dict[str, Callable[[], str]] = {
    "reproduction-T1-classifier": trained,
    "reproduction-T1-background": background,
    "reproduction-T2-protocol": protocol,
    "reproduction-T2-classifiers": classifiers,
    "reproduction-T2-clustering": clustering,
    "reproduction-T3-codes": codes,
    "reproduction-T4-readings": readings,
}
