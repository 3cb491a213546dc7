"""Messages are safe to print, whatever they quote."""

import copy

import pytest

from vqshield.core.errors import (
    FileFormatError,
    InvalidInputError,
    MissingExtraError,
    VqshieldError,
    printable,
)


@pytest.mark.parametrize("kind", [InvalidInputError, FileFormatError])
def test_a_message_is_one_printable_line(kind):
    error = kind("there is no file a\x1b[31m\r\n\x00\x7f\x85\u2028\udcff.png")
    assert str(error) == r"there is no file a\x1b[31m\r\n\x00\x7f\x85\u2028\udcff.png"
    assert str(copy.copy(error)) == str(error)


def test_an_error_over_several_things_keeps_its_lines():
    assert str(VqshieldError("two failed:\na\x07\nb")) == "two failed:\na\\x07\nb"


def test_letters_of_every_script_stay_as_they_are():
    assert printable("Bär 画像 صورة 'quoted' \\ ☃") == "Bär 画像 صورة 'quoted' \\ ☃"


def test_a_missing_extra_names_the_command():
    assert 'pip install ".[cli]" -c constraints.txt' in str(MissingExtraError("rich", "cli"))
