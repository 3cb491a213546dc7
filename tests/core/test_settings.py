"""Specs as typed on a command line: every form that is meant works, every other says what is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vqshield import attacks, defenses
from vqshield.attacks.suites import suite
from vqshield.core.checks import one_of
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import did_you_mean, format_settings, format_value, parse_number, parse_spec
from vqshield.data import load


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("swrd", "swrd", {}),
        ("swrd:size=3,codes=25", "swrd", {"size": 3, "codes": 25}),
        (" swrd : size = 3 , beta = 2.5 ", "swrd", {"size": 3, "beta": 2.5}),
        ("prd:sigma=4/255,tau=0", "prd", {"sigma": 4 / 255, "tau": 0}),
        ("prd:sigma=1e-3,tau=.5,beta=2.", "prd", {"sigma": 1e-3, "tau": 0.5, "beta": 2.0}),
        ("prd:init=kmeans++,padding=zero", "prd", {"init": "kmeans++", "padding": "zero"}),
        ("prd:codes=-1", "prd", {"codes": -1}),
        ("prd:sigma=0.5/255", "prd", {"sigma": 0.5 / 255}),
        ("pgd:step=eps/10", "pgd", {"step": "eps/10"}),
        ("prd:seed=18446744073709551615", "prd", {"seed": 2**64 - 1}),
    ],
)
def test_what_can_be_typed(text, name, settings):
    found_name, found = parse_spec(text)
    assert (found_name, found) == (name, settings)
    assert {key: type(value) for key, value in found.items()} == {k: type(v) for k, v in settings.items()}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        (":size=3", "':size=3'"),
        ("swrd:", "no settings"),
        ("swrd:size", "'size'"),
        ("swrd:size=", "size=''"),
        ("swrd:=3", "'=3'"),
        ("swrd:size=3,", "''"),
        ("swrd:size=3,,codes=2", "''"),
        ("swrd:size=3,size=4", "twice"),
        ("swrd:size=3;codes=4", "3;codes=4"),
        ("swrd:tau=4/0", "4/0"),
        ("swrd:tau=1/2/3", "1/2/3"),
        ("swrd:tau=1e999", "1e999"),
        ("swrd:tau=__import__('os')", "__import__"),
        ("swrd:si ze=3", "'si ze=3'"),
        ("swrd:size=3 4", "3 4"),
        ("swrd:codes=٣", "٣"),
        ("3", "'3'"),
        ("../swrd", "'../swrd'"),
    ],
)
def test_what_cannot_is_named_with_what_could(text, named):
    with pytest.raises(InvalidInputError) as caught:
        parse_spec(text)
    assert named in str(caught.value)
    assert any(word in str(caught.value) for word in ("write", "valid", "set it once"))


@pytest.mark.parametrize(("text", "value"), [("8/255", 8 / 255), ("0.5", 0.5), ("3", 3.0)])
def test_one_number(text, value):
    found = parse_number("eps", text)
    assert (found, type(found)) == (value, float)


@pytest.mark.parametrize("text", ["much", "true", "1,runs=3", "", "4/0"])
def test_what_is_not_one_number_is_named(text):
    with pytest.raises(InvalidInputError, match="eps="):
        parse_number("eps", text)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_clearly(text):
    try:
        name, settings = parse_spec(text)
    except InvalidInputError:
        return
    assert name
    assert all(isinstance(value, int | float | str) for value in settings.values())


@given(st.dictionaries(st.sampled_from(["size", "codes"]), st.integers(-(10**9), 10**9), min_size=1))
def test_formatted_settings_read_back(settings):
    assert parse_spec(f"any:{format_settings(settings)}") == ("any", settings)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4 / 255, "4/255"),
        (8 / 255, "8/255"),
        (0.5, "0.5"),
        (2.0, "2"),
        (0.0, "0"),
        (25, "25"),
        (None, "None"),
        (True, "true"),
    ],
)
def test_values_look_as_typed(value, text):
    assert format_value(value) == text


def test_true_and_false_are_no_words() -> None:
    assert parse_spec("pgd:random_start=false,loss=margin") == (
        "pgd",
        {"random_start": False, "loss": "margin"},
    )
    assert parse_spec("pgd:random_start=true")[1]["random_start"] is True


@pytest.mark.parametrize(
    ("value", "near"),
    [("swdr", "swrd"), ("SWRD", "swrd"), ("rand-disc", "randdisc"), ("pdr", "prd")],
)
def test_a_near_name_is_suggested(value, near):
    with pytest.raises(InvalidInputError, match=rf"one of prd, randdisc, swrd\. Did you mean '{near}'\?"):
        one_of("defense", value, ["swrd", "prd", "randdisc"])


def test_nothing_is_suggested_where_nothing_is_near():
    with pytest.raises(InvalidInputError, match=r"prd, swrd$"):
        one_of("defense", "jpeg", ["swrd", "prd"])
    assert did_you_mean("x" * 10**6, ["swrd"]) == ""


@pytest.mark.parametrize(
    ("ask", "near"),
    [
        (lambda: defenses.create("swrdd"), "swrd"),
        (lambda: defenses.create("swrd", sigmaa=1), "sigma"),
        (lambda: attacks.create("pdg", attacks.ball("linf", 0.1)), "pgd"),
        (lambda: suite("queries", attacks.ball("linf", 0.1)), "queries-v1"),
        (lambda: load("cifar-10", "test"), "cifar10"),
    ],
)
def test_every_registry_suggests(ask, near):
    with pytest.raises(InvalidInputError, match=rf"Did you mean '{near}'\?"):
        ask()
