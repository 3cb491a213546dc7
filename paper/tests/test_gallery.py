"""The gallery: pictures in records that can be checked with nothing but themselves and the classifier."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.core.serialization import to_plain
from vqshield.images.pictures import as_bytes
from vqshield.runs.arguments import defense_from
from vqshield.runs.executors import LocalExecutor
from vqshield.runs.study import Recorded
from vqshield.runs.target import Target
from vqshield_paper.gallery import Gallery, GallerySummary, PictureRecord

PRD, SWRD = "prd:size=2,codes=5", "swrd:size=3,codes=5"
TARGET = Target(limit=3, device="cpu")
STUDY = Gallery(
    target=TARGET, defenses=(PRD, SWRD), attack="pgd:steps=5,surrogate=none", eps=8 / 255, images=(2, 0)
)
CAPTIONS = ["clean", "attacked", f"attacked, then {PRD}", f"attacked, then {SWRD}"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[PictureRecord]]:
    folder = tmp_path_factory.mktemp("gallery")
    LocalExecutor().run(STUDY, folder)
    return folder, list(Gallery.read(folder).records)


def pixels(record: PictureRecord) -> Tensor:
    """The picture of a record, (q, h, w) bytes."""
    with Image.open(io.BytesIO(base64.b64decode(record.png))) as picture:
        assert picture.format == "PNG"
        found = np.array(picture)
    return torch.from_numpy(found if found.ndim == 3 else found[:, :, None]).permute(2, 0, 1)


def test_a_record_for_every_image_and_column(finished) -> None:
    _, records = finished
    assert [(record.image, record.caption) for record in records] == [
        (image, caption) for image in (2, 0) for caption in CAPTIONS
    ]
    assert [record.defense for record in records[:4]] == ["none", "none", PRD, SWRD]
    for record in records:
        assert record.label == int(TARGET.images.labels[record.image])
        assert pixels(record).shape == (3, record.height, record.width) == (3, 32, 32)
        assert PictureRecord.parse(record.line()) == record


def test_the_answers_are_those_about_the_pictures_shown(finished) -> None:
    shown = torch.stack([pixels(record) for record in finished[1]])
    with torch.no_grad():
        answers = TARGET.model(shown.float() / 255).argmax(1).tolist()
    assert [record.answer for record in finished[1]] == answers


def test_clean_is_the_data_and_attacked_is_near_it_and_wrong(finished) -> None:
    for row in (finished[1][:4], finished[1][4:]):
        clean, attacked = pixels(row[0]).int(), pixels(row[1]).int()
        assert torch.equal(clean, TARGET.images.images[row[0].image].int())
        assert int((attacked - clean).abs().max()) == 8
        assert row[0].answer == row[0].label != row[1].answer


def test_a_defense_is_shown_on_the_attacked_picture(finished) -> None:
    """pRD puts one of five centres in place of every patch."""
    for row in (finished[1][:4], finished[1][4:]):
        patches = pixels(row[2]).unfold(1, 2, 2).unfold(2, 2, 2).permute(1, 2, 0, 3, 4).reshape(-1, 12)
        assert len(patches.unique(dim=0)) <= 5
        for record in row[2:]:
            seed = derived_seed(STUDY.seed, record.defense, record.image, "picture")
            expected = defense_from(record.defense, seed=seed)(pixels(row[1])[None].float() / 255)
            assert torch.equal(pixels(record), as_bytes(expected)[0])


def test_stopped_anywhere_it_ends_in_the_same_bytes(finished, tmp_path: Path) -> None:
    def stop(_: str, done: int, __: int) -> None:
        if done == 6:  # in the middle of the second image
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalExecutor().run(STUDY, tmp_path, progress=stop)
    assert len(Gallery.read(tmp_path).records) == 4
    LocalExecutor().run(STUDY, tmp_path)
    for name in ("records.jsonl", "manifest.json"):
        assert (tmp_path / name).read_bytes() == (finished[0] / name).read_bytes()


def test_a_row_does_not_depend_on_the_others(finished) -> None:
    seen: list[int] = []
    assert STUDY.measure(STUDY.cells[1], lambda _, done: seen.append(done)) == finished[1][4:]
    assert seen == [0, 1, 2, 3, 4]
    assert STUDY.work == 8


def test_another_seed_gives_other_pictures(finished) -> None:
    others = replace(STUDY, seed=1).measure(STUDY.cells[0])
    same = [one.png == other.png for one, other in zip(finished[1][:4], others, strict=True)]
    assert same == [True, False, False, False]


def test_grey_images_are_shown_grey() -> None:
    images = torch.randint(
        0, 256, (2, 1, 10, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    target = Target.in_memory(
        nn.Sequential(nn.Flatten(), nn.Linear(80, 2)), images.float() / 255, torch.tensor([0, 1])
    )
    gallery = replace(STUDY, target=target, images=(1,), defenses=("prd:size=2,codes=2",))
    records = gallery.measure(gallery.cells[0])
    assert torch.equal(pixels(records[0]), images[1])
    assert [(record.height, record.width) for record in records] == [(10, 8)] * 3
    assert all(pixels(record).shape == (1, 10, 8) for record in records)


def test_the_summary_is_the_gallery_that_reports_show(finished) -> None:
    folder, records = finished
    summary = GallerySummary.of(Gallery.read(folder))
    assert summary.complete is True
    assert [column.caption for column in summary.manifest.columns] == CAPTIONS
    assert summary.manifest.images == (2, 0)
    for row, first in zip(summary.rows, (0, 4), strict=True):
        assert row.label == TARGET.images.classes[records[first].label]
        assert [picture.caption for picture in row.pictures] == CAPTIONS
        for picture, record in zip(row.pictures, records[first:], strict=False):
            assert picture.image == f"data:image/png;base64,{record.png}"
            assert picture.verdict == TARGET.images.classes[record.answer]
            assert picture.correct == (picture.verdict == row.label)
    assert json.loads(json.dumps(to_plain(summary))) == to_plain(summary)


def test_what_there_is_of_a_gallery_that_was_stopped(finished) -> None:
    whole = Gallery.read(finished[0])
    summary = GallerySummary.of(replace(whole, records=whole.records[:4]))
    assert summary.complete is False
    assert len(summary.rows) == 1
    nothing = GallerySummary.of(Recorded(manifest=whole.manifest, records=[], seconds={}))
    assert nothing.rows == ()


def test_the_manifest_alone_tells_the_cells(finished) -> None:
    manifest = json.loads((finished[0] / "manifest.json").read_text())
    assert Gallery.cells_of(Gallery.read(finished[0]).manifest) == STUDY.cells
    assert manifest["attack"]["attack"]["steps"] == 5
    assert manifest["classes"] == list(TARGET.images.classes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eps": 0.0}, "eps=0.0 should be > 0"),
        ({"eps": 1.5}, "eps=1.5 should be from 0 to 1"),
        ({"norm": "l3"}, "norm='l3' is unknown"),
        ({"attack": "pgd:steps=5"}, "attack='pgd:steps=5' goes through a defense.*give it surrogate=none"),
        ({"attack": "hope"}, "attack='hope' is unknown"),
        ({"images": ()}, "images holds no number"),
        ({"images": (1, 1)}, "image 1 is given twice"),
        ({"images": (-1,)}, "images=-1 should be >= 0"),
        ({"images": (0.5,)}, "images=0.5 should be a whole number"),
        ({"defenses": ()}, "no defense is given"),
        ({"defenses": ("none",)}, "defense 'none' is the column 'attacked'"),
        ({"defenses": ("prd:seed=3",)}, "would fix every draw"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_settings_that_cannot_work_are_named(change: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        replace(STUDY, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": (0, 3)}, "images holds 3; 'cifar10-sample' has the images 0 to 2"),
        ({"defenses": ("prd:size=40",)}, "size=40 should be at most"),
    ],
)
def test_what_the_data_cannot_give_is_refused_before_any_work(
    tmp_path: Path, change: dict, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        LocalExecutor().run(replace(STUDY, **change), tmp_path / "out")
    assert not (tmp_path / "out").exists()
