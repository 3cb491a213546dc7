"""The one door between dataclasses and files: nothing changes on the way through, and errors say where."""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.serialization import Json, from_plain, to_plain


@dataclass(frozen=True, kw_only=True)
class Leaf:
    name: str
    share: float
    count: int = 0
    unit: Literal["percent", "nats", 1] = "percent"


@dataclass(frozen=True, kw_only=True)
class Tree:
    title: str
    leaves: tuple[Leaf, ...]
    pair: tuple[int, float]
    by_name: Mapping[str, Leaf]
    whole_or_text: int | str
    number: int | float
    either: Leaf | tuple[int, ...] | None = None
    flags: dict[str, bool] = field(default_factory=dict)
    best: Leaf | None = None
    note: str | None = field(default=None, metadata={"omit": True})
    extra: Json = None
    path: Path | None = None


FINITE = st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.builds(
    Leaf, name=st.text(), share=FINITE, count=st.integers(), unit=st.sampled_from(["percent", "nats", 1])
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
TREES = st.builds(
    Tree,
    title=st.text(),
    leaves=st.lists(LEAVES, max_size=3).map(tuple),
    pair=st.tuples(st.integers(), FINITE),
    by_name=st.dictionaries(st.text(), LEAVES, max_size=3),
    whole_or_text=st.integers() | st.text(),
    number=st.integers() | FINITE,
    either=st.none() | LEAVES | st.lists(st.integers(), max_size=3).map(tuple),
    flags=st.dictionaries(st.text(), st.booleans(), max_size=3),
    best=st.none() | LEAVES,
    note=st.none() | st.text(),
    extra=JSON,
    path=st.none() | st.text("abc/.", min_size=1).map(Path),
)

LEAF = {"name": "a", "share": 0.5}
TREE = {
    "title": "x",
    "leaves": [LEAF],
    "pair": [1, 2.5],
    "by_name": {"b": LEAF},
    "whole_or_text": 3,
    "number": 3,
}


@given(TREES)
def test_through_json_and_back_nothing_changes(tree):
    text = json.dumps(to_plain(tree))
    again = from_plain(Tree, json.loads(text), "file")
    assert again == tree
    assert [type(again.number), type(again.pair[1])] == [type(tree.number), type(tree.pair[1])]
    assert json.dumps(to_plain(again)) == text


def test_fields_keep_their_order_and_lists_become_tuples():
    tree = from_plain(Tree, TREE, "file")
    assert tree.leaves == (Leaf(name="a", share=0.5),)
    assert tree.pair == (1, 2.5)
    assert list(to_plain(tree))[:3] == ["title", "leaves", "pair"]
    assert list(to_plain(tree.leaves[0])) == ["name", "share", "count", "unit"]


def test_only_fields_marked_so_are_left_out_where_they_are_none():
    plain = to_plain(from_plain(Tree, TREE, "file"))
    assert "note" not in plain
    assert plain["best"] is None
    assert to_plain(from_plain(Tree, {**TREE, "note": "n"}, "file"))["note"] == "n"


def test_a_whole_number_serves_as_a_float_but_not_the_other_way():
    leaf = from_plain(Leaf, {"name": "a", "share": 1}, "file")
    assert (leaf.share, type(leaf.share)) == (1.0, float)
    with pytest.raises(FileFormatError, match=r"file\.count is 1\.0; it should be a whole number"):
        from_plain(Leaf, {**LEAF, "count": 1.0}, "file")


def test_toml_is_read_alike():
    table = tomllib.loads('name = "a"\nshare = 0.5\nunit = "nats"\n')
    assert from_plain(Leaf, table, "file") == Leaf(name="a", share=0.5, unit="nats")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"title": 5}, "file.title is 5; it should be a text"),
        ({"title": None}, "file.title is None; it should be a text"),
        ({"leaves": "ab"}, "file.leaves is 'ab'; it should be a list"),
        ({"leaves": {}}, "file.leaves is {}; it should be a list"),
        ({"leaves": [LEAF, 7]}, "file.leaves[1] is 7; it should be a table"),
        ({"leaves": [LEAF, {"name": "b"}]}, "file.leaves[1] has no 'share', which it needs"),
        ({"leaves": [{**LEAF, "share": "1"}]}, "file.leaves[0].share is '1'; it should be a finite number"),
        ({"leaves": [{**LEAF, "share": True}]}, "file.leaves[0].share is True; it should be a finite number"),
        ({"leaves": [{**LEAF, "share": math.nan}]}, "share is nan; it should be a finite number"),
        ({"leaves": [{**LEAF, "share": -math.inf}]}, "share is -inf; it should be a finite number"),
        ({"leaves": [{**LEAF, "share": 10**400}]}, "it should be a finite number"),
        ({"leaves": [{**LEAF, "share": 10**5000}]}, "a number of thousands of digits; it should be a finite"),
        ({"leaves": [{**LEAF, "count": True}]}, "count is True; it should be a whole number"),
        ({"leaves": [{**LEAF, "unit": "bits"}]}, "unit is 'bits'; it should be one of percent, nats, 1"),
        ({"leaves": [{**LEAF, "unit": True}]}, "unit is True; it should be one of percent, nats, 1"),
        ({"leaves": [{**LEAF, "unit": []}]}, "unit is []; it should be one of percent, nats, 1"),
        ({"pair": [1]}, "file.pair has 1 entries; there should be 2"),
        ({"pair": [1, "b"]}, "file.pair[1] is 'b'; it should be a finite number"),
        ({"pair": 1}, "file.pair is 1; it should be a list of whole numbers of 2 entries"),
        ({"by_name": []}, "file.by_name is []; it should be a table"),
        ({"by_name": {"b": {"name": 1, "share": 1}}}, "file.by_name.b.name is 1; it should be a text"),
        ({"flags": {"a": 1}}, "file.flags.a is 1; it should be true or false"),
        ({"whole_or_text": 1.5}, "file.whole_or_text is 1.5; it should be a whole number or a text"),
        ({"whole_or_text": None}, "file.whole_or_text is None; it should be a whole number or a text"),
        ({"number": "3"}, "file.number is '3'; it should be a whole number or a finite number"),
        ({"best": 3}, "file.best is 3; it should be a table or absent"),
        ({"best": {"name": "a", "share": None}}, "file.best.share is None; it should be a finite number"),
        ({"either": {"name": "a"}}, "file.either has no 'share', which it needs"),
        ({"either": [1, "b"]}, "file.either[1] is 'b'; it should be a whole number"),
        ({"either": "b"}, "file.either is 'b'; it should be a table or a list of whole numbers or absent"),
        ({"path": 5}, "file.path is 5; it should be a text, the path of a file or absent"),
        ({"title": ["x" * 500]}, "x…; it should be a text"),
    ],
)  # fmt: skip
def test_an_error_names_the_place_the_value_and_what_would_be_valid(change, message):
    with pytest.raises(FileFormatError) as caught:
        from_plain(Tree, {**TREE, **change}, "file")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("missing", ["title", "leaves", "pair", "by_name", "whole_or_text"])
def test_a_missing_key_is_named(missing):
    with pytest.raises(FileFormatError, match=f"file has no '{missing}', which it needs"):
        from_plain(Tree, {key: value for key, value in TREE.items() if key != missing}, "file")


def test_an_unknown_key_is_refused_with_the_known_ones_or_passed_over():
    table = {**TREE, "leaves": [{**LEAF, "shar": 1}]}
    known = r"known are name, share, count, unit\. Did you mean 'share'\?"
    with pytest.raises(FileFormatError, match=rf"file\.leaves\[0\] has the unknown key 'shar'; {known}"):
        from_plain(Tree, table, "file")
    assert from_plain(Tree, table, "file", strict=False) == from_plain(Tree, TREE, "file")
    with pytest.raises(FileFormatError, match="share is 'x'"):  # lenient about keys, not about values
        from_plain(Leaf, {"name": "a", "share": "x", "more": 1}, "file", strict=False)


def test_a_dataclass_that_refuses_its_values_names_the_place():
    @dataclass
    class Positive:
        value: int

        def __post_init__(self) -> None:
            if self.value < 1:
                raise InvalidInputError(f"value={self.value} should be >= 1")

    with pytest.raises(FileFormatError, match=r"^file: value=0 should be >= 1$"):
        from_plain(Positive, {"value": 0}, "file")


def test_what_is_no_table_at_all():
    for value in (None, [], "text", 5):
        with pytest.raises(FileFormatError, match="it should be a table"):
            from_plain(Leaf, value, "file")


def test_anything_passes_where_anything_is_allowed():
    @dataclass
    class Free:
        any: Any
        json: Json

    held = {"any": {"a": [1, None]}, "json": [{"b": 2.5}]}
    assert to_plain(from_plain(Free, held, "file")) == held
