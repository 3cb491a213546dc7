"""Quantize image files: find them, give each an output name, and write one PNG for each.

An input's own name fixes its random stream: a file's name, or the path below the folder that was given, with
.png as its ending. So with a seeded defense the same picture under the same name gets the same pixels,
whatever else is purified with it, even where another input takes its output name and it becomes NAME-2.png.

purified.jsonl in the output folder has a line for each result: digests of the input and of the output, the
defense and the version. A later run skips results that it lists for the same picture and settings.
"""

import hashlib
import os
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

import vqshield
from vqshield.core.errors import InvalidInputError, VqshieldError, printable
from vqshield.core.files import Journal, file_sha256, write_atomically
from vqshield.defenses import Defense, DefenseLike, as_defense
from vqshield.images.files import DEFAULT_MAX_PIXELS, SUFFIXES, Picture, picture_to_png, read_image

JOURNAL = "purified.jsonl"
"""In the output folder: what made each result."""


@dataclass(frozen=True)
class PlannedFile:
    """One file to purify: where it is, where its result goes, and the name that fixes its random stream."""

    source: Path
    target: Path
    stream_name: str
    problem: str | None = None


@dataclass(frozen=True)
class Purified:
    """The outcome for one file; error is None exactly when output was written, now or (skipped) earlier."""

    input: Path
    output: Path | None
    width: int | None
    height: int | None
    seconds: float
    error: str | None
    skipped: bool = False


def purify(
    paths: Path | str | Iterable[Path | str],
    out: Path | str,
    *,
    defense: DefenseLike = "swrd",
    seed: int | None = None,
    overwrite: bool = False,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    progress: Callable[[Purified, int, int], None] | None = None,
) -> list[Purified]:
    """Quantize image files, so that a classifier sees them through the shield.

    Args:
        paths: PNG or JPEG files, or folders. A folder means every PNG and JPEG file below it; hidden and
            other files are left out, sub-folders are kept.
        out: folder for the results, always PNG; made if it does not exist.
        defense: a spec string ("swrd:size=3,tau=4/255"), "package.module:function", a Defense, or a module or
            function from images to images.
        seed: make the results reproducible: the same seed, picture and name (of the file, or below the folder
            given) give the same pixels. Without it the noise is unpredictable, as a defense in use needs it.
        overwrite: replace earlier results. Without it, results of the same picture, defense, seed and version
            are skipped, and any other file of that name is an error. An input is never replaced.
        max_pixels: refuse larger pictures, so that a decompression bomb cannot fill the memory.
        progress: called after each file with what became of it, how many are done, and how many there are.

    Returns:
        What became of each file; one that fails has its error, and the others are still done.

    Raises:
        InvalidInputError: the defense or the output folder cannot be used.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from vqshield.images.files import encode_png
        >>> with TemporaryDirectory() as folder:
        ...     picture = Path(folder) / "in.png"
        ...     _ = picture.write_bytes(encode_png(images[0].mul(255).byte().permute(1, 2, 0).numpy()))
        ...     done = vq.purify(picture, Path(folder) / "out", defense="prd", seed=0)
        >>> done[0].error is None, done[0].width
        (True, 32)
    """
    quantizer = as_defense(defense, seed=seed)
    files = plan(map(Path, [paths] if isinstance(paths, Path | str) else paths), Path(out))
    journal = Journal(Path(out) / JOURNAL)
    results: list[Purified] = []
    for file in files:
        results.append(_purify_file(file, quantizer, journal, overwrite=overwrite, max_pixels=max_pixels))
        if progress is not None:
            progress(results[-1], len(results), len(files))
    return results


def plan(paths: Iterable[Path], out: Path) -> list[PlannedFile]:
    """The files behind the paths, in order, each once, with an output name of its own.

    A folder means the PNG and JPEG files below it, except hidden and linked folders, hidden files and
    `out`. A path that leads to no file is planned with its problem, and reported like a broken file.
    """
    if out.exists() and not out.is_dir():
        raise InvalidInputError(f"{out} is a file; the output must be a folder")
    entries = [entry for path in paths for entry in _entries(path, out)]
    inputs = {number for source, _, _ in entries if (number := _file_number(source)) is not None}
    files: dict[str, PlannedFile] = {}
    taken: set[str] = set()
    for source, wanted, problem in entries:
        if (key := os.path.normpath(source.absolute())) in files:  # named twice, or together with its folder
            continue
        target = out / (_free_name(wanted, taken) if problem is None else "")
        if problem is None and _file_number(target) in inputs:
            problem = f"{source}: its output {target} would overwrite an input; choose another output folder"
        files[key] = PlannedFile(source=source, target=target, stream_name=str(wanted), problem=problem)
    return list(files.values())


def _purify_file(
    file: PlannedFile, defense: Defense, journal: Journal, *, overwrite: bool, max_pixels: int
) -> Purified:
    """Quantize one file; a failure is returned as its error."""
    started, picture, error, skipped = time.perf_counter(), None, None, False
    name = file.target.relative_to(journal.path.parent).as_posix()
    # A defense shows its seed only where one was given.
    made = {"defense": repr(defense), "stream": file.stream_name, "vqshield": vqshield.__version__}
    try:
        if file.problem is not None:
            raise InvalidInputError(file.problem)
        if file.target.is_dir():
            raise InvalidInputError(
                f"{file.source}: its output {file.target} is a folder; move it or choose another"
            )
        skipped = not overwrite and file.target.exists()
        if not skipped:
            picture = read_image(file.source, max_pixels=max_pixels)
            content = picture_to_png(replace(picture, colour=_quantize(picture, defense, file)))
            # Recorded first: a run that is killed leaves no file that the next one cannot explain.
            output = hashlib.sha256(content).hexdigest()
            journal[name] = {"input": file_sha256(file.source), **made, "output": output}
            write_atomically(file.target, content)
        elif not _is_recorded(file, journal.get(name), made):
            raise InvalidInputError(
                f"{file.source}: its output {file.target} exists and is not recorded as made from this "
                "picture with these settings; allow overwriting or choose another"
            )
    except VqshieldError as problem:
        error = str(problem)
    except OSError as problem:
        error = printable(f"{file.source}: cannot write {file.target} ({problem.strerror or problem})")
    except (MemoryError, RuntimeError) as problem:  # torch says "not enough memory" in a plain RuntimeError
        if not isinstance(problem, MemoryError) and "memory" not in str(problem):
            raise
        error = printable(f"{file.source}: not enough memory for this picture")
    return Purified(
        input=file.source,
        output=None if error else file.target,
        width=picture.width if picture else None,
        height=picture.height if picture else None,
        seconds=time.perf_counter() - started,
        error=error,
        skipped=skipped and error is None,
    )


def _is_recorded(file: PlannedFile, entry: object, made: dict[str, str]) -> bool:
    """Whether the output is the one that these settings made from this very picture."""
    if not (file.source.is_file() and file.target.is_file()):  # reading a pipe would not end
        return False
    return entry == {"input": file_sha256(file.source), **made, "output": file_sha256(file.target)}


def stream_of(name: str) -> int:
    """The 63-bit random stream of a name, equal on every machine."""
    encoded = name.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest()) >> 1


def _entries(path: Path, out: Path) -> Iterator[tuple[Path, PurePosixPath, str | None]]:
    if _file_number(path) is None:
        yield path, PurePosixPath(), f"{path}: no such file, or it cannot be reached"
        return
    if not path.is_dir():
        yield path, PurePosixPath(path.name).with_suffix(".png"), None
        return
    problems: list[OSError] = []
    empty = True
    for folder, folders, files in os.walk(path, onerror=problems.append):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(Path(folder, name)) != os.path.realpath(out)
        )
        for file in sorted(files):
            source = Path(folder, file)
            if not file.startswith(".") and source.suffix.lower() in SUFFIXES:
                empty = False
                yield source, PurePosixPath(source.relative_to(path).as_posix()).with_suffix(".png"), None
    for problem in problems:
        unread = Path(problem.filename)
        yield unread, PurePosixPath(), f"{unread}: cannot read this folder ({problem.strerror})"
    if empty and not problems:
        yield path, PurePosixPath(), f"{path}: no PNG or JPEG file in this folder"


def _free_name(wanted: PurePosixPath, taken: set[str]) -> str:
    """The wanted name, or with -2, -3, ... where another file has it, also on a disk that ignores case."""
    candidate, number = wanted, 1
    while (key := unicodedata.normalize("NFC", str(candidate)).casefold()) in taken:
        number += 1
        candidate = wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}")
    taken.add(key)
    return str(candidate)


def _quantize(picture: Picture, defense: Defense, file: PlannedFile) -> Tensor:
    streams = torch.tensor([stream_of(file.stream_name)], dtype=torch.int64)
    try:
        result: Tensor = defense(picture.colour[None], streams=streams)[0]
        return result
    except InvalidInputError as error:  # smaller than a patch, or fewer patches than codes
        size = f"{picture.width}x{picture.height} pixels"
        raise InvalidInputError(f"{file.source}: cannot be quantized at {size}: {error}") from error


def _file_number(path: Path) -> tuple[int, int] | None:
    """What the disk knows a file by: equal for two spellings of one name where case is ignored."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
