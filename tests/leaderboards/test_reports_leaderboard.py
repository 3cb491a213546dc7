"""A leaderboard's files: contributed rows are shown as text, and links lead to files of the board."""

from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from pages import Page
from vqshield.leaderboards.page import board_markdown, render_board, render_row
from vqshield.leaderboards.study import BoardSummary

COMMITTED = Path(__file__).parents[2] / "paper" / "results" / "leaderboard-cifar10-resnet18"
SCHEMES = ("javascript:alert(1)", "data:text/html,x", "//evil.example/x", "https://evil.example/a) [b](c")


@pytest.fixture(scope="module")
def hostile() -> BoardSummary:
    """The first row of the committed board, with hostile text and links in every field."""
    summary = BoardSummary.read(COMMITTED)
    first = summary.rows[0]
    text = '<script>alert("x")</script> | [a](javascript:alert(1)) ![b](http://evil.example/c) `d` & | e\n# f'
    row = replace(
        first.row, title=text, made_by=text, classifier=text, paper="javascript:alert(1)", control=False
    )
    files = dict(zip(("evaluation", "remote", "cost", "audit"), SCHEMES, strict=True))
    return replace(summary, rows=(replace(first, row=row, files=files, not_run={"transfer": text}),))


def test_markdown_shows_what_a_row_says_as_text(hostile: BoardSummary) -> None:
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(board_markdown(hostile, links=True))
    cells = [
        tokens[place + 1]
        for place, token in enumerate(tokens)
        if token.type in ("th_open", "td_open", "paragraph_open")
    ]
    children = [child for cell in cells for child in cell.children or ()]
    assert {child.type for child in children} == {"text", "link_open", "link_close"}
    assert [token.type for token in tokens].count("tr_open") == 2
    assert [token.type for token in tokens].count("td_open") == [token.type for token in tokens].count(
        "th_open"
    )
    shown = ["".join(child.content for child in cell.children or ()) for cell in cells]
    words = " ".join((hostile.rows[0].row.title or "").split())
    assert [text for text in shown if text == words] == [words] * 3, "title, classifier, made by"


@pytest.mark.parametrize("kind", ["Markdown", "HTML"])
def test_links_lead_to_files_of_the_board(hostile: BoardSummary, kind: str) -> None:
    if kind == "HTML":
        board, row = render_board(hostile), render_row(hostile, hostile.rows[0])
        assert len(Page(board).all("script")) == 1
        assert Page(row).all("script") == []
        links = [each["href"] for each in Page(board).all("a") + Page(row).all("a")]
        assert len(links) == 3 + 5
    else:
        tokens = MarkdownIt("commonmark").enable("table").parse(board_markdown(hostile, links=True))
        links = [
            child.attrGet("href")
            for token in tokens
            for child in token.children or ()
            if child.type == "link_open"
        ]
    assert links
    assert [each for each in links if ":" in each or each.startswith("//")] == []
