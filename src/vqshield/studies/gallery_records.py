"""The pictures of a gallery as records, and the gallery as reports show it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vqshield.runs.records import Key, Line


@dataclass(frozen=True, kw_only=True)
class PictureRecord(Line):
    """One picture of the gallery.

    caption: its column. answer: what the bare classifier takes this very picture for.
    png: the picture as a PNG file, in base64.
    """

    caption: str
    image: int
    label: int
    answer: int
    height: int
    width: int
    png: str

    @property
    def key(self) -> Key:
        """What it is of."""
        return self.defense, self.caption, self.image


def summarise_gallery(specification: Mapping[str, Any], records: Iterable[PictureRecord]) -> dict[str, Any]:
    """The gallery, a row an image with its pictures in the order of the columns; of a stopped run, the rows
    there are. A picture is given as a data URI, as pages embed it: nothing needs to be decoded.
    """
    rows: dict[int, list[PictureRecord]] = {}
    for record in records:
        rows.setdefault(record.image, []).append(record)
    classes = specification["classes"]
    return {
        "title": f"Images of {specification['data']['name']}, attacked by {specification['attack']['name']}, "
        f"classifier {specification['classifier']['name']}",
        "complete": sum(map(len, rows.values()))
        == len(specification["images"]) * len(specification["columns"]),
        "columns": [column["caption"] for column in specification["columns"]],
        "gallery": [
            {
                "image": image,
                "label": classes[row[0].label],
                "pictures": [_picture(each, classes) for each in row],
            }
            for image, row in rows.items()
        ],
        "specification": dict(specification),
    }


def _picture(record: PictureRecord, classes: list[str]) -> dict[str, Any]:
    return {
        "caption": record.caption,
        "image": f"data:image/png;base64,{record.png}",
        "verdict": classes[record.answer],
        "correct": record.answer == record.label,
        "height": record.height,
        "width": record.width,
    }
