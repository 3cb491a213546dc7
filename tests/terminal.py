"""Tables as a terminal of some width shows them."""

import io
import re

from rich.cells import cell_len
from rich.console import Console

NUMBER = re.compile(r"\d+\.\d+(?: ± \d+\.\d+)?")


def printed(table, width):
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def assert_nothing_is_cut(table, width):
    """Every number and every word of the headings is shown, in lines of that width."""
    text = printed(table, width)
    assert "…" not in text
    assert all(cell_len(line) <= width for line in text.splitlines())
    everything = NUMBER.findall(printed(table, 400))
    assert everything
    wanted = {number: everything.count(number) for number in everything}
    found = NUMBER.findall(text)
    for number, times in wanted.items():
        assert found.count(number) >= times, number
    for column in table.columns:
        words = str(column.header).split()
        assert all(word in text for word in words), words
