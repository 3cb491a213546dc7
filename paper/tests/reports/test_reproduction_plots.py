"""Plots of a reproduced experiment: drawn from the values, the same bytes every time."""

import base64
import re
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from summaries import COLUMNS, HOSTILE, gaps, hostile, part, row, summary, value, written

from pages import Page
from vqshield.reports.plots import DARK, LIGHT
from vqshield_paper.reports.plots import draw_curves, draw_dots, draw_tradeoff, part_plots
from vqshield_paper.reproduction.model import Column


def curve_rows(*, series=("pRD", "swRD"), settings=(10, 25, 50)):
    found = [row("no defense", {"natural": value(0.95, 0.94), "autoattack": value(0.0, 0.0)}, defense="none")]
    for place, name in enumerate(series):
        for k in reversed(settings):
            values = {
                "natural": value(0.5 + k / 200, 0.48 + k / 200, std=0.01),
                "autoattack": value(
                    0.7 - k / 100 + place / 10, None if k == 25 else 0.6 - k / 100 + place / 10
                ),
                "adaptive": value(None, 0.02),
            }
            found.append(row(f"{name} (k={k})", values, series=name, x=k))
    return found


def curves(**other):
    return part(**{"name": "k", "x_title": "k", "rows": curve_rows(), **other})


def drawn(draw, found, stacked=False):
    picture = Figure()
    draw(picture, found, stacked)
    return picture


def lines_of(axes, style):
    """The curves of a style, by colour."""
    found = [line for line in axes.lines if line.get_linestyle() == style and len(line.get_xdata()) > 2]
    return {line.get_color(): list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in found}


def test_a_panel_per_column_that_has_figures():
    panels = drawn(draw_curves, curves()).axes
    assert [axes.get_title() for axes in panels] == ["natural", "AutoAttack", "adaptive-v1"]
    assert {axes.get_xlabel() for axes in panels} == {"k"}
    assert panels[0].get_ylabel() == "accuracy, %"
    assert len({axes.get_ylim() for axes in panels}) == 1


def test_curves_are_the_figures_dashed_for_the_paper_and_solid_for_ours():
    natural, autoattack, adaptive = drawn(draw_curves, curves()).axes
    paper, ours = lines_of(natural, "--"), lines_of(natural, "-")
    assert set(paper) == set(ours) == set(LIGHT.series[:2])
    for colour in paper:
        assert paper[colour] == [(k, pytest.approx(50 + k / 2)) for k in (10, 25, 50)]
        assert ours[colour] == [(k, pytest.approx(48 + k / 2)) for k in (10, 25, 50)]
    assert not lines_of(adaptive, "--")
    missing = [line for line in autoattack.lines if line.get_color() == LIGHT.series[0]]
    assert [list(line.get_xdata()) for line in missing if line.get_linestyle() == "-"] == [[10, 50]]


def test_a_defense_without_a_setting_is_a_line_across():
    natural = drawn(draw_curves, curves()).axes[0]
    flat = [line for line in natural.lines if line.get_color() == LIGHT.quiet]
    assert sorted(line.get_ydata()[0] for line in flat) == [94.0, 95.0]


def test_the_legend_stands_once_and_names_every_series_even_an_underscored_one():
    (legend,) = drawn(draw_curves, curves(rows=curve_rows(series=("_pRD", "swRD")))).legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["_pRD", "swRD", "no defense", "ours", "paper", "± standard deviation over runs"]


def test_many_panels_are_wrapped():
    columns = [Column(key=f"c{place}", title=f"c{place}") for place in range(6)]
    values = {column.key: value(0.5, 0.6) for column in columns}
    found = curves(
        columns=columns, rows=[row("a", values, series="a", x=1), row("b", values, series="a", x=2)]
    )
    assert len(drawn(draw_curves, found).axes) == 6


def test_a_setting_that_spans_magnitudes_is_read_by_its_factors():
    assert drawn(draw_curves, curves()).axes[0].get_xscale() == "linear"
    assert drawn(draw_curves, curves(rows=curve_rows(settings=(1, 10, 50)))).axes[0].get_xscale() == "log"
    assert drawn(draw_curves, curves(rows=curve_rows(settings=(0, 10, 50)))).axes[0].get_xscale() == "linear"


def test_a_trade_off_sets_natural_against_robust_and_labels_points():
    autoattack, adaptive = drawn(draw_tradeoff, curves(tradeoff=True)).axes
    points = lines_of(autoattack, "--")[LIGHT.series[0]]
    assert points == [(pytest.approx(50 + k / 2), pytest.approx(70 - k)) for k in (10, 25, 50)]
    assert sorted(text.get_text() for text in adaptive.texts) == ["10", "10", "25", "25", "50", "50"]
    assert adaptive.get_title() == "adaptive-v1"


def test_a_trade_off_is_drawn_only_where_it_is_asked_for_and_can_be():
    names = lambda found: [plot.name for plot in part_plots(found, "curves")]  # noqa: E731
    assert names(curves()) == ["plot-k"]
    assert names(curves(tradeoff=True)) == ["plot-k", "tradeoff-k"]
    assert names(curves(tradeoff=True, columns=COLUMNS[:2])) == ["plot-k"]


def test_a_trade_off_sets_figures_over_the_same_images_against_each_other():
    values = {
        "natural": value(None, 0.9, n=1000, paired=0.8, paired_n=100),
        "autoattack": value(None, 0.7, n=1000, paired=0.6, paired_n=100),
        "adaptive": value(None, 0.1, n=100),
    }
    found = curves(tradeoff=True, rows=[row("a", values, series="a", x=1)])
    points = [
        [(*line.get_xdata(), *line.get_ydata()) for line in axes.lines if len(line.get_xdata())]
        for axes in drawn(draw_tradeoff, found).axes
    ]
    assert points == [[pytest.approx((90, 70))], [pytest.approx((80, 10))]]
    values["natural"] = replace(values["natural"], paired=None)
    assert [axes.get_title() for axes in drawn(draw_tradeoff, found).axes] == ["AutoAttack"]


def test_a_gap_below_zero_is_on_the_axes():
    found = gaps(-0.125, 0.02)
    (axes,) = drawn(draw_curves, found).axes
    assert axes.get_ylim()[0] < -12.5
    assert axes.get_ylabel() == "difference, points"
    (axes,) = dots(found).axes
    assert axes.get_xlim()[0] < -12.5
    assert list(axes.get_xticks()) == [-25, 0, 25, 50, 75, 100]
    (axes,) = dots(gaps(0.1, 0.02)).axes
    assert list(axes.get_xticks()) == [0, 25, 50, 75, 100]


def dots(found):
    return drawn(draw_dots, found)


def bars_of(picture):
    """The length of each error bar, and the words of the legend about them."""
    bars = [bar for axes in picture.axes for bar in axes.containers if bar.has_xerr]
    ends = [bar.lines[2][0].get_segments()[0][:, 0] for bar in bars]
    words = [text.get_text() for text in picture.legends[0].get_texts()]
    return [(right - left) / 2 for left, right in ends], [word for word in words if "±" in word]


@pytest.mark.parametrize(
    ("known", "wanted", "words"),
    [
        ({"std": 0.04, "standard_error": 0.01}, [1], ["± standard error over images"]),
        ({"std": 0.01, "standard_error": 0.04}, [4], ["± standard error over images"]),
        ({"std": 0.04}, [4], ["± standard deviation over runs"]),
        ({}, [], []),
    ],
)
def test_bars_are_errors_over_images_else_deviations_over_runs_and_the_legend_says_which(
    known, wanted, words
):
    found = part(rows=[row("a", {"natural": value(0.5, 0.5, **known)})])
    lengths, said = bars_of(dots(found))
    assert lengths == pytest.approx(wanted)
    assert said == words
    (plot,) = part_plots(found, "table")
    assert ("bars: " in plot.text) == bool(words)
    assert all(word in plot.text for word in words)


def test_bars_of_both_kinds_are_both_named():
    values = {"natural": value(0.5, 0.5, standard_error=0.04), "pgd": value(0.5, 0.5, std=0.02)}
    lengths, (said,) = bars_of(dots(part(rows=[row("a", values)])))
    assert lengths == pytest.approx([4, 2])
    assert said == "± standard error over images,\nelse standard deviation over runs"


def test_bands_are_the_same_as_bars():
    values = [{"natural": value(None, 0.5, standard_error=0.04, std=0.2)} for _ in range(2)]
    found = curves(rows=[row("a", each, series="a", x=x) for x, each in enumerate(values)])
    picture = drawn(draw_curves, found)
    (band,) = picture.axes[0].collections
    assert {round(y, 6) for y in band.get_paths()[0].vertices[:, 1]} == {46.0, 54.0}
    assert [text.get_text() for text in picture.legends[0].get_texts()][-1] == "± standard error over images"


def test_dots_are_hollow_for_the_paper_filled_for_ours_red_for_the_adaptive():
    natural, *_, adaptive = dots(part()).axes
    hollow = [line for line in natural.lines if to_hex(line.get_markerfacecolor()) == LIGHT.background]
    assert [line.get_xdata()[0] for line in hollow] == pytest.approx([95.35, 83.42, 87.14])
    filled = [line for line in natural.lines if line.get_marker() == "o" and line not in hollow]
    assert [line.get_xdata()[0] for line in filled] == pytest.approx([95.3, 77.5])
    assert {line.get_color() for line in adaptive.lines if line.get_marker() == "o"} == {LIGHT.bad}
    labels = [label.get_text() for label in natural.get_yticklabels()]
    assert labels == ["no defense", "swRD (s=3, k=25)", "Madry *"]


@pytest.mark.parametrize("draw", [draw_dots, draw_curves, draw_tradeoff])
def test_on_a_phone_panels_stand_below_each_other(draw):
    side_by_side, stacked = (drawn(draw, curves(tradeoff=True), each) for each in (False, True))
    assert [axes.get_title() for axes in stacked.axes] == [axes.get_title() for axes in side_by_side.axes]
    assert len({axes.get_position().x0 for axes in stacked.axes}) == 1
    assert len({axes.get_position().y0 for axes in side_by_side.axes}) == 1
    assert stacked.get_figwidth() < side_by_side.get_figwidth()


def test_on_a_phone_published_results_are_the_last_dots():
    found = part(rows=(row("Madry", {"natural": value(0.87)}, literature=True), *part().rows[:2]))
    names = [[label.get_text() for label in dots(found).axes[0].get_yticklabels()]]
    names.append([label.get_text() for label in drawn(draw_dots, found, True).axes[0].get_yticklabels()])
    assert names == [
        ["Madry *", "no defense", "swRD (s=3, k=25)"],
        ["no defense", "swRD (s=3, k=25)", "Madry *"],
    ]


def test_in_the_dark_every_colour_is_another():
    for plot in (*part_plots(part(), "table"), *part_plots(curves(tradeoff=True), "curves")):
        for svg in (plot.svg, plot.stacked_svg):
            before, _, rest = svg.partition(b"<style>@media (prefers-color-scheme: dark) {")
            rules, _, after = rest.partition(b"}</style>")
            light_ones = set(re.findall(rb"(?:fill|stroke): #[0-9a-f]{6}\b", before + after))
            assert {each[-7:] for each in light_ones} <= {each.lower().encode() for each in colours_of(LIGHT)}
            assert light_ones == set(re.findall(rb'style\*="([^"]+)"', rules))
            dark_ones = {each.lower() for each in re.findall(rb":(#[0-9A-Fa-f]{6}) !important", rules)}
            assert dark_ones <= {each.lower().encode() for each in colours_of(DARK)}


def colours_of(palette):
    found = vars(palette).copy()
    return [*found.pop("series"), *found.values()]


@pytest.mark.parametrize("view", ["gallery", "example"])
def test_other_views_have_no_plot(view):
    assert not part_plots(part(), view)


def test_nothing_to_draw_is_no_plot():
    assert not part_plots(part(rows=[]), "table")
    assert not part_plots(part(rows=[row("a", {"pgd": value()})]), "curves")


def test_files_are_pictures_and_stand_in_the_page_for_light_and_dark(tmp_path):
    files = written(tmp_path, summary(curves(tradeoff=True), view="curves"))
    names = ["plot-k.png", "plot-k.svg", "tradeoff-k.png", "tradeoff-k.svg"]
    assert list(files) == ["report.html", "report.md", "report.tex", *names]
    for name in names:
        if name.endswith(".png"):
            assert files[name].startswith(b"\x89PNG\r\n")
        else:
            assert ElementTree.fromstring(files[name]).tag == "{http://www.w3.org/2000/svg}svg"
    page = Page(files["report.html"].decode())
    prefix = "data:image/svg+xml;base64,"
    inlined = [base64.b64decode(image["src"].removeprefix(prefix)) for image in page.all("img")]
    assert inlined == [files["plot-k.svg"], files["tradeoff-k.svg"]]
    assert all("CIFAR-10, ResNet18" in image["alt"] for image in page.all("img"))
    for source in page.all("source"):
        assert source["media"] == "(max-width: 44rem)"
        assert source["srcset"].startswith(prefix)
    assert len(page.all("source")) == 2
    assert [f"({name})" in files["report.md"].decode() for name in names] == [True, False, True, False]


def test_hostile_titles_are_drawn_as_they_are(tmp_path):
    tree = ElementTree.fromstring(written(tmp_path, hostile())["plot-cifar10.svg"])
    assert not [node for node in tree.iter() if node.tag.endswith("script")]
    found = curves(title=HOSTILE, x_title=HOSTILE, rows=curve_rows(series=(HOSTILE, "a--b")))
    (plot,) = part_plots(found, "curves")
    ElementTree.fromstring(plot.svg)
    # As a formula this would be an error.
    assert part_plots(curves(x_title=r"$\frac$"), "curves")


@pytest.mark.parametrize("view", ["table", "curves"])
def test_the_same_summary_gives_the_same_bytes_whatever_the_readers_settings(tmp_path, view):
    found = summary(curves(tradeoff=True), view=view)
    first = written(tmp_path / "a", found)
    with matplotlib.rc_context(
        {"font.family": "serif", "svg.hashsalt": None, "lines.dash_capstyle": "round"}
    ):
        before = dict(matplotlib.rcParams)
        assert written(tmp_path / "b", found) == first
        assert dict(matplotlib.rcParams) == before, "settings of matplotlib belong to the reader"
    assert not [name for name, content in first.items() if re.search(rb"dc:date|Software", content)]
