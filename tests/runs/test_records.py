"""A folder of records: whole chunks or nothing, one manifest, one process."""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.evaluation.records import EvaluationRecord
from vqshield.runs.manifests import read_manifest
from vqshield.runs.records import RecordFolder

CHUNKS = [[("prd", attack, image) for image in images] for images in ((0, 1), (2,)) for attack in ("a", "b")]


@dataclass(frozen=True)
class Data:
    images: int


@dataclass(frozen=True)
class Attack:
    name: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    runs: int = 3
    data: Data = Data(3)
    attacks: tuple[Attack, ...] = (Attack("a"), Attack("b"))
    new: int | None = field(default=None, metadata={"omit": True})


MANIFEST = Manifest()


def records_of(chunk: list[tuple[str, str, int]]) -> list[EvaluationRecord]:
    return [
        EvaluationRecord(
            defense=defense, attack=attack, level="ste", image=image, label=1, distance=image / 255,
            selected=2, predictions=(1, image, 0),
        )
        for defense, attack, image in chunk
    ]  # fmt: skip


def records_in(folder: Path) -> RecordFolder[EvaluationRecord]:
    return RecordFolder(folder, CHUNKS, EvaluationRecord.parse)


def write(folder: Path, count: int = len(CHUNKS)) -> RecordFolder[EvaluationRecord]:
    """Continue until that many chunks are there."""
    records = records_in(folder)
    with records.writing(MANIFEST) as writer:
        for number in range(writer.done, count):
            writer.append(records_of(CHUNKS[number]), seconds=number + 0.5)
    return records


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("unbroken")
    write(folder)
    return (folder / "records.jsonl").read_bytes()


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    records = write(tmp_path / "new" / "folder")
    assert records.read() == [record for chunk in CHUNKS for record in records_of(chunk)]
    lines = (records.folder / "records.jsonl").read_text().splitlines()
    assert json.loads(lines[1]) == {
        "defense": "prd", "attack": "a", "level": "ste", "image": 1, "label": 1, "distance": 1 / 255,
        "selected": 2, "predictions": [1, 1, 0],
    }  # fmt: skip
    assert read_manifest(Manifest, records.folder) == MANIFEST
    assert json.loads((records.folder / "manifest.json").read_text()) == {
        "runs": 3, "data": {"images": 3}, "attacks": [{"name": "a"}, {"name": "b"}]
    }  # fmt: skip


def test_cut_off_anywhere_it_continues_from_the_last_whole_chunk(tmp_path: Path, unbroken: bytes) -> None:
    write(tmp_path, 0)
    file = tmp_path / "records.jsonl"
    line_ends = [place for place, byte in enumerate(unbroken, start=1) if byte == ord("\n")]
    for size in {0, 1, len(unbroken), *(end + by for end in line_ends[:-1] for by in (-1, 0, 1, 40))}:
        file.write_bytes(unbroken[:size])
        lines = sum(end <= size for end in line_ends)
        whole = max(count for count in (0, 2, 4, 5, 6) if count <= lines)  # the chunks' sizes are 2, 2, 1, 1
        assert len(records_in(tmp_path).read()) == whole
        write(tmp_path)
        assert file.read_bytes() == unbroken, f"after {size} bytes"


def pack(folder: Path) -> Path:
    """Put the records away, as gzip does."""
    plain = folder / "records.jsonl"
    packed = folder / "records.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    return packed


def test_packed_records_are_read_and_continued(tmp_path: Path, unbroken: bytes) -> None:
    before = write(tmp_path, 2).read()
    pack(tmp_path)
    assert records_in(tmp_path).read() == before
    write(tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == unbroken


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: b"?" + content[1:]])
def test_damaged_packed_records_are_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    records = write(tmp_path)
    packed = pack(tmp_path)
    packed.write_bytes(damage(packed.read_bytes()))
    with pytest.raises(FileFormatError, match=r"records\.jsonl\.gz is damaged"):
        records.read()


def test_rubbish_at_the_end_is_dropped(tmp_path: Path, unbroken: bytes) -> None:
    write(tmp_path, 2)
    with (tmp_path / "records.jsonl").open("ab") as file:
        file.write(b"\x00" * 100)  # what a file system may leave after a power cut
    write(tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == unbroken


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [lines[0], b"{}\n", *lines[1:]], "line 2 is not a record"),
        (lambda lines: [b"nothing\n", *lines], "line 1 is not a record"),
        (lambda lines: lines[1:], r"line 1 is of \('prd', 'a', 1\), expected was \('prd', 'a', 0\)"),
        (lambda lines: [*lines, lines[0]], "line 7 is of .* expected was the end of the file"),
    ],
)
def test_a_file_that_was_changed_is_named_and_left_as_it_is(tmp_path: Path, change, message: str) -> None:
    write(tmp_path)
    file = tmp_path / "records.jsonl"
    changed = b"".join(change(file.read_bytes().splitlines(keepends=True)))
    file.write_bytes(changed)
    with pytest.raises(FileFormatError, match=message):
        write(tmp_path)
    assert file.read_bytes() == changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": 4}, "runs=3, this run has runs=4"),
        ({"data": Data(2)}, "data.images=3, this run has data.images=2"),
        ({"attacks": (Attack("a"),)}, "attacks.1.name='b', this run has attacks.1.name='absent'"),
        ({"attacks": ()}, "attacks.0.name='a', this run has attacks.0.name='absent'"),
        ({"new": 1}, "new='absent', this run has new=1"),
    ],
)
def test_another_manifest_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    write(tmp_path, 2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with (
        pytest.raises(InvalidInputError, match=message) as refused,
        records_in(tmp_path).writing(replace(MANIFEST, **change)),
    ):
        pass
    assert str(tmp_path) in str(refused.value)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_equal_manifest_may_come_in_other_types(tmp_path: Path) -> None:
    write(tmp_path, 1)
    same = {"attacks": [{"name": "a"}, Attack("b")], "data": Data(3), "runs": 3}
    with records_in(tmp_path).writing(same) as writer:
        assert writer.done == 1


@pytest.mark.parametrize("name", ["records.jsonl", "summary.json"])
def test_files_of_something_else_are_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(InvalidInputError, match=rf"{name} but no manifest.json .* choose another folder"):
        write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidInputError, match="is a file; choose a folder"):
        write(tmp_path / "file")


def test_two_processes_do_not_write_into_one_folder(tmp_path: Path) -> None:
    # flock belongs to an open file, so that a second opening in this process is refused like another process.
    with records_in(tmp_path).writing(MANIFEST) as writer:
        with pytest.raises(InvalidInputError, match="another process is writing into"):
            write(tmp_path)
        writer.append(records_of(CHUNKS[0]), seconds=0)
    assert len(write(tmp_path).read()) == 6


def test_seconds_are_of_whole_chunks_each_counted_once(tmp_path: Path) -> None:
    records = write(tmp_path)
    assert records.seconds(records.read()) == {("prd", "a"): 0.5 + 2.5, ("prd", "b"): 1.5 + 3.5}
    with (tmp_path / "times.jsonl").open("a") as file:
        file.write('["prd", "a", 0, 10.0]\n["prd", "a", 99, 1.0]\n["prd", "b"')  # again, unknown, half a line
    assert records.seconds(records.read()) == {("prd", "a"): 12.5, ("prd", "b"): 5.0}


@pytest.mark.parametrize(
    ("content", "message"), [(None, "no run was started there"), ("{", "manifest.json is not JSON")]
)
def test_a_folder_without_a_manifest_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_manifest(Manifest, tmp_path)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ('{"runs": 3}', InvalidInputError, "no field 'data': it belongs to records of another kind"),
        (
            '{"runs": "3", "data": {"images": 3}, "attacks": []}',
            FileFormatError,
            r"runs is '3'; .* whole number",
        ),
        ('{"runs": 3, "data": {}, "attacks": []}', FileFormatError, r"manifest\.json\.data has no 'images'"),
        ("[]", FileFormatError, "it should be a table"),
    ],
)
def test_a_manifest_of_something_else_is_named(
    tmp_path: Path, content: str, error: type[Exception], message: str
) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(error, match=message):
        read_manifest(Manifest, tmp_path)


def test_what_a_later_version_adds_to_a_manifest_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": 1}))
    assert read_manifest(Manifest, tmp_path) == MANIFEST


@pytest.mark.parametrize("name", ["records.jsonl", "times.jsonl", ".lock"])
def test_a_symbolic_link_is_not_followed(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    write(tmp_path / "out", 1)
    (tmp_path / "out" / name).rename(target)
    before = target.read_bytes()
    (tmp_path / "out" / name).symlink_to(target)
    with pytest.raises(FileFormatError, match=f"{name} is a symbolic link; remove it"):
        write(tmp_path / "out")
    assert target.read_bytes() == before
