"""An audit as a table and as a page: every flag with its figures, nothing from outside, nothing hostile."""

import io
import re
import sys

import pytest
import torch
from rich.console import Console

from pages import Page
from vqshield.auditing import (
    FAIL,
    NOT_RUN,
    PASS,
    SUSPICIOUS,
    TITLES,
    UNDECIDED,
    Agreement,
    Audit,
    AuditReport,
    AuditSettings,
    Flag,
    Uncertain,
    flags,
)
from vqshield.auditing.flags import CHECKS
from vqshield.auditing.page import (
    audit_lines,
    audit_notes,
    curves_plot,
    headline,
    render_audit,
    shown_figures,
)
from vqshield.auditing.planting import Planted
from vqshield.cli.output import show
from vqshield.core.errors import MissingExtraError
from vqshield.models.draws import Draws

HOSTILE = '"><script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>[red]'


SOFT = Agreement(0.91234, 0.9, 0.95, images=24, directions=4, draws=32, step=0.03)


REPORTED = Uncertain(0.123, 0.02)


def left(right: int, images: int = 100) -> Draws:
    """The first so many images right, the others wrong."""
    return Draws((torch.arange(images) >= right).long()[None], torch.zeros(images, dtype=torch.int64))


def report(
    found: tuple[Flag, ...] = (),
    attacks: dict[str, Uncertain] | None = None,
    reported: Uncertain = REPORTED,
    **changes,
) -> AuditReport:
    chosen = found or tuple(
        flags.in_order([
            flags.unbounded(left(0), 0.5),
            flags.monotone("R2", "steps", [(5, left(40)), (10, left(60))]),
            flags.below_natural(left(12), left(90)),
            flags.planted(Planted(24, 24, 23, 1)),
            flags.flag("R10", PASS, "so", {"soft": SOFT}),
        ], 100)
    )  # fmt: skip
    audit = Audit(
        passed=all(flag.outcome == PASS for flag in chosen),
        n=24,
        natural=Uncertain(0.9, 0.03),
        reported=reported,
        attacks=attacks or {"pgd:steps=20,eot=5": Uncertain(0.15, 0.02)},
        flags=chosen,
    )
    fixed = {
        "data": "cifar10-sample", "classifier": "small-cifar10", "defense": "swrd:size=3",
        "given": ("pgd",), "norm": "linf", "eps": 8 / 255, "settings": AuditSettings(seed=7),
        "machine": {"cores": 2, "torch": "2.13.0"}, "seconds": 12.6, **vars(audit),
    }  # fmt: skip
    return AuditReport(**{**fixed, **changes})


ALL_PASSED = tuple(flags.flag(name, PASS, "so") for name in TITLES)


def printed(table, width=160):
    text = io.StringIO()
    Console(width=width, file=text).print(table)
    return text.getvalue()


UNDER = "robust accuracy of swrd:size=3 under pgd (ε = 8/255, L∞, N = 24)"


def test_a_headline_says_that_a_number_is_credible_and_whether_it_is_low():
    low = headline(report(ALL_PASSED))
    assert low == f"Credible: 12.3 ± 2.0 % {UNDER}. This is low: the clean accuracy is 90.0 %."
    high = headline(report(ALL_PASSED, reported=Uncertain(0.46, 0.07), norm="l2", eps=0.5))
    assert high == "Credible: 46.0 ± 7.0 % " + UNDER.replace("8/255, L∞", "0.5, L2") + "."


def test_the_headline_never_shows_a_figure_that_its_own_audit_contradicts():
    probed = flags.knowing_helps(left(95), left(97), left(0), knows=True)
    found = tuple(flags.in_order([probed], 100))
    assert headline(report(found, reported=Uncertain(0.95, 0.05))) == (
        f"Doubtful (R8 failed): 95.0 ± 5.0 % {UNDER}, but 0.0 % under another attack of this audit."
    )


def test_a_failed_audit_has_no_figure_in_its_headline_even_if_no_probe_leaves_less():
    assert headline(report()) == f"Doubtful (R2 failed): the {UNDER} may be lower than reported."


def test_what_was_not_confirmed_is_called_so():
    unsure = tuple(flags.flag(name, UNDECIDED, "so") for name in ("R1", "R9"))
    found = (*unsure, flags.not_run("R2", "so"), *ALL_PASSED[2:8])
    assert headline(report(found)) == (
        f"Undecided (R1, R9 undecided; R2 not run): at most 12.3 ± 2.0 % {UNDER}."
    )
    suspicious = (flags.flag("R11", SUSPICIOUS, "so"), *found)
    assert headline(report(suspicious)) == (
        f"Doubtful (R11 suspicious): the {UNDER} may be lower than reported."
    )


def test_every_check_has_a_line_and_failures_come_first():
    lines = [line.plain for line in audit_lines(report())]
    assert lines[0] == f"R2   fail     {TITLES['R2']}"
    assert sorted(line.split()[0] for line in lines) == sorted(TITLES)
    outcomes = [re.split("  +", line)[1] for line in lines]
    assert outcomes == ["fail", *["not run"] * 9, *["pass"] * 4]


def test_a_failure_is_explained_and_the_budget_named():
    assert audit_notes(report()) == [
        "R2: accuracy rises from steps 5 to 10: the attack loses its way; a better one would win more.",
        "budget: linf, eps 8/255",
    ]


def test_a_line_is_cut_to_the_terminal(monkeypatch):
    console = Console(width=40, file=io.StringIO(), force_terminal=True, color_system=None)
    monkeypatch.setattr("vqshield.cli.output.Console", lambda **_: console)
    show(*audit_lines(report()))
    shown = console.file.getvalue().splitlines()
    assert len(shown) == len(TITLES)
    assert shown[0].endswith("…")


def test_figures_are_shown_as_lines_of_text():
    figures = {
        "left": Uncertain(0.5, 0.0123),
        "soft": SOFT,
        "limit": 0.01,
        "found": 23,
        "note": "words",
    }
    assert list(shown_figures(figures)) == [
        "left: 50.0 ± 1.2 %",
        "soft: pooled 0.912, median 0.9, reliability 0.95, images 24, directions 4, draws 32, step 0.03",
        "limit: 0.01",
        "found: 23",
        "note: words",
    ]
    assert list(shown_figures({})) == []


def test_the_page_holds_flags_figures_and_how_it_was_made():
    page = Page(render_audit(report()))
    text = re.sub(r"\s+", " ", " ".join(page.text))
    for title in TITLES.values():
        assert title in text
    for words in (
        headline(report()), "50 images or more rule out a rise of 25 points",
        "steps 5: 40.0 ± 4.9 %", "share: 0.958", "soft: pooled 0.912, median 0.9",
        "accuracy rises from steps",
        "90.0 ± 3.0 %", "pgd:steps=20,eot=5 15.0 ± 2.0 %", "linf, eps 8/255", "24 of cifar10-sample",
        "small-cifar10", "2.13.0",
    ):  # fmt: skip
        assert words in text, words
    assert text.count("not asked for") == 9
    assert "A check that is undecided or was not run has not passed." in text


def test_outcomes_are_told_by_words_and_marked_for_style():
    page = Page(render_audit(report()))
    marks = [each for each in page.all("a") if each["href"].startswith("#R")]
    expected = {flag.name: flag.outcome for flag in report().flags}
    assert {each["href"][1:] for each in marks} == {*expected}
    assert set(expected.values()) == {PASS, FAIL, NOT_RUN}
    assert [each["class"] for each in marks] == ["fail", *["unsure"] * 9, *["pass"] * 4], "failures first"
    assert {each["id"] for each in page.all("section") + page.all("details") if "id" in each} == {*expected}


def test_what_failed_says_what_to_do_next_and_numbers_are_folded():
    page = Page(render_audit(report()))
    text = " ".join(" ".join(page.text).split())
    assert text.count("What to do next:") == 1
    assert CHECKS["R2"].next in text
    assert CHECKS["R1"].next not in text
    tags = [tag for tag, _ in page.tags]
    assert tags.index("details") < tags.index("ul", tags.index("section"))
    unsure = " ".join(Page(render_audit(report((flags.flag("R1", UNDECIDED, "so"),)))).text)
    assert "repeat the audit with more images" in unsure


def test_curves_show_accuracy_by_steps_and_by_budget_as_fractions():
    plot = curves_plot(report())
    assert plot.text == "Accuracy by steps of the attack (R2): 40.0 ± 4.9 % at 5, 60.0 ± 4.9 % at 10"
    budgets = flags.monotone("R3", "eps", [(4 / 255, left(60)), (8 / 255, left(40))])
    hostile = flags.flag("R2", PASS, "so", {f"steps {HOSTILE}": REPORTED})
    assert curves_plot(report((hostile, budgets))).text.endswith(
        "60.0 ± 4.9 % at 4/255, 40.0 ± 4.9 % at 8/255"
    )
    assert curves_plot(report(ALL_PASSED)) is None
    rising = report((flags.monotone("R3", "eps", [(4 / 255, left(40)), (8 / 255, left(60))]),))
    assert "accuracy rises from eps 4/255 to 8/255" in render_audit(rising)
    assert "accuracy rises from eps 4/255 to 8/255" in audit_notes(rising)[0]
    assert list(shown_figures(budgets.figures)) == ["eps 4/255: 60.0 ± 4.9 %", "eps 8/255: 40.0 ± 4.9 %"]


def test_the_time_it_took_is_no_part_of_the_page():
    assert render_audit(report(seconds=1.0)) == render_audit(report(seconds=99.0))


def test_nothing_is_asked_for_from_outside():
    page = Page(render_audit(report()))
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert attributes.get(name, "data:").startswith(("data:", "#"))
    assert "url(" not in "".join(page.styles)
    assert "@import" not in "".join(page.styles)
    assert not page.all("script")
    policies = [each["content"] for each in page.all("meta") if each.get("http-equiv")]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_hostile_names_stay_text(capsys):
    everywhere = report(
        (flags.flag("R9", NOT_RUN, HOSTILE, {HOSTILE: HOSTILE}),),
        attacks={HOSTILE: Uncertain(0.5, 0.1)},
        defense=HOSTILE,
        classifier=HOSTILE,
        data=HOSTILE,
        machine={HOSTILE: HOSTILE},
    )
    page = Page(render_audit(everywhere))
    assert not page.all("script")
    assert not page.all("img")
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert " ".join(page.text).count("<script>alert(1)</script>") >= 7
    show(headline(everywhere), *audit_lines(everywhere))
    assert HOSTILE in capsys.readouterr().out


@pytest.mark.parametrize(("module", "make"), [("jinja2", render_audit), ("rich", audit_lines)])
def test_without_the_extra_its_name_is_given(module: str, make, monkeypatch) -> None:
    for loaded in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=f"{module} is not installed"):
        make(report())
