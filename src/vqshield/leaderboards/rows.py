"""The rows of a leaderboard: one small TOML file with the fields of a `BoardRow` each."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vqshield.classifiers import BUNDLED, is_source
from vqshield.core.display_names import display_defense
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import file_exists, parse_toml, read_text
from vqshield.core.serialization import from_plain
from vqshield.core.settings import did_you_mean
from vqshield.runs.arguments import defense_from

SUFFIX = ".toml"
ALL = "all"  # of the bundled rows
_BUNDLED = Path(__file__).parent / "board"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")
_ORDER = (
    "bare", "gaussian", "bitdepth", "median", "jpeg", "resizepad", "tv", "essential", "randdisc", "prd",
    "swrd",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BoardRow:
    """A defense in front of a classifier, and whose it is.

    Attributes:
        name: letters, digits and hyphens, also its folder; no two rows of a board have the same.
        defense: "swrd:size=3,codes=25", "package.module:function", or "none" for the classifier alone.
        classifier: a file next to the TOML file, or a name as for `vq.evaluate`.
        made_by, paper: for the reader; a paper that begins with https:// becomes a link.
        title: its title on the page (default: the defense as people write it).
        control: whether it is a baseline rather than a defense that is offered.
    """

    name: str
    defense: str
    classifier: str = BUNDLED
    made_by: str | None = field(default=None, metadata={"omit": True})
    paper: str | None = field(default=None, metadata={"omit": True})
    title: str | None = field(default=None, metadata={"omit": True})
    control: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInputError(
                f"name={self.name!r} should be letters, digits and hyphens, as in my-blur"
            )

    @property
    def shown(self) -> str:
        return self.title or display_defense(self.defense)


def list_rows() -> list[str]:
    """The names of the rows that come with the package, controls first.

    Example:
        >>> from vqshield.leaderboards.rows import list_rows
        >>> list_rows()[:3]
        ['bare', 'gaussian', 'bitdepth']
    """
    return list(_ORDER)


def read_rows(wanted: Sequence[str | Path | BoardRow]) -> list[BoardRow]:
    """The wanted rows, in that order.

    Args:
        wanted: rows; names of rows that come with the package, or "all" for all of these; TOML files with a
            row each; folders of such files.

    Raises:
        InvalidInputError: a row or file is unknown, or two rows have one name.
        FileFormatError: a file is not a row; the message names the file and the key.

    Example:
        >>> from vqshield.leaderboards.rows import read_rows
        >>> [(row.name, row.shown, row.control) for row in read_rows(["bare", "swrd"])]
        [('bare', 'no defense', True), ('swrd', 'swRD (s=3, k=25)', False)]
    """
    rows: list[BoardRow] = []
    for row in wanted:
        rows += [row] if isinstance(row, BoardRow) else _named(row)
    if not rows:
        raise InvalidInputError(f"no row is given; give {ALL}, or some of {', '.join(_ORDER)}, or files")
    names = [row.name for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInputError(f"two rows have the name {name!r}; give each its own")
    return rows


def _named(which: str | Path) -> list[BoardRow]:
    path = Path(which)
    if which == ALL or which in _ORDER:
        return [_read(_BUNDLED / f"{name}{SUFFIX}") for name in (_ORDER if which == ALL else [which])]
    if path.is_dir():
        files = sorted(path.glob(f"*{SUFFIX}"))
        if not files:
            raise InvalidInputError(f"{path} holds no {SUFFIX} file; give a folder with a file for each row")
        return [_read(file) for file in files]
    if path.suffix == SUFFIX:
        if not path.is_file():
            raise InvalidInputError(f"{path} is not a file; give a {SUFFIX} file with a row")
        return [_read(path)]
    raise InvalidInputError(
        f"row {str(which)!r} is not known; give {ALL}, some of {', '.join(_ORDER)}, a {SUFFIX} file or a "
        f"folder of them{did_you_mean(str(which), _ORDER)}"
    )


def _read(path: Path) -> BoardRow:
    row = from_plain(BoardRow, parse_toml(read_text(path), str(path)), str(path))
    try:
        defense_from(row.defense, seed=0)
    except InvalidInputError as error:
        raise FileFormatError(f"{path}.defense: {error}") from error
    neighbour = path.parent / row.classifier
    if not is_source(row.classifier) and file_exists(neighbour):
        return replace(row, classifier=str(neighbour.absolute()))
    if is_source(row.classifier) or file_exists(Path(row.classifier)):
        return row
    raise FileFormatError(
        f"{path}.classifier is {row.classifier!r}, not a file next to it or in the current folder; give a "
        f"safetensors file or a name that vqshield list classifiers shows"
    )
