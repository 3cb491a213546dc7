# ruff: noqa: E501
"""Files that lie, in every format that is read; run as a program, each is read in a process of bounded memory.

A row is (name, file, reader, message): `file` writes it into an empty folder and returns what the reader is
given; `message` is a part of the error that it must end in.
"""

import gzip
import io
import json
import resource
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from vqshield.classifiers import build, load_classifier
from vqshield.core.errors import VqshieldError
from vqshield.core.files import Journal
from vqshield.data import load
from vqshield.images.files import read_image
from vqshield.training.run import read_checkpoint
from vqshield_paper.reproduction.experiments import experiment

GIB = 1 << 30
DIGITS = "1" * 5000
DEEP = "[" * 100_000


class Row(NamedTuple):
    name: str
    file: Callable[[Path], Path]
    read: Callable[[Path], object]
    message: str


def written(name: str, content: bytes | str | Callable[[], bytes]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        data = content() if callable(content) else content
        (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
        return folder / name

    return write


def sparse(name: str, start: bytes, size: int, end: bytes = b"") -> Callable[[Path], Path]:
    """A file of that size in which only the start and the end take room on the disk."""

    def write(folder: Path) -> Path:
        with (folder / name).open("wb") as file:
            file.write(start)
            file.truncate(size - len(end))
            file.seek(size - len(end))
            file.write(end)
        return folder / name

    return write


# --- .npz -----------------------------------------------------------------------------------------------------


def npy_header(shape: object, descr: object = "|u1", *, text: str | None = None) -> bytes:
    header = text or repr({"descr": descr, "fortran_order": False, "shape": shape})
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


def npy(array: object) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array))
    return buffer.getvalue()


def npz(**members: object) -> bytes:
    """A zip of bytes (as they are) and arrays; four good images and labels where none are given."""
    good = {"images": np.zeros((4, 3, 8, 8), np.uint8), "labels": np.arange(4)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, held in {**good, **members}.items():
            if held is None:
                continue
            opened.writestr(f"{name}.npy", held if isinstance(held, bytes) else npy(held))
    return buffer.getvalue()


def zeros_deflated(header: bytes, count: int) -> bytes:
    """A deflate stream of the header and at least `count` zeros, made without packing each of them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH)
    block = 64 << 20
    again = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = again.compress(bytes(block)) + again.flush(zlib.Z_FULL_FLUSH)
    return start + body * -(-count // block) + again.flush(zlib.Z_FINISH)


def zip_of(
    name: str, packed: bytes, size: int, *, method: int = zipfile.ZIP_DEFLATED, flags: int = 0
) -> bytes:
    """A zip whose one entry is `packed` and claims to unpack to `size` bytes (at most 4 GiB)."""
    local = struct.pack(
        "<4sHHHHHIIIHH", b"PK\3\4", 20, flags, method, 0, 0, 0, len(packed), size, len(name), 0
    )
    local += name.encode()
    return local + packed + directory(name, len(packed), size, len(local) + len(packed), method, flags)


def directory(name: str, packed: int, size: int, at: int, method: int, flags: int = 0) -> bytes:
    entry = struct.pack(
        "<4sHHHHHHIIIHHHHHII",
        b"PK\1\2", 20, 20, flags, method, 0, 0, 0, packed, size, len(name), 0, 0, 0, 0, 0, 0,
    )  # fmt: skip
    entry += name.encode()
    return entry + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, len(entry), at, 0)


def bomb(name: str, shape: tuple[int, ...]) -> bytes:
    """A zip with one honest array of zeros, thousands of times larger than the file."""
    header, count = npy_header(shape), int(np.prod(shape, dtype=object))
    return zip_of(f"{name}.npy", zeros_deflated(header, count), len(header) + count)


def packed_images_with(**changes: object) -> bytes:
    """A zip whose images.npy has fields of its directory entry changed."""
    content = bytearray(npz())
    at = content.rindex(b"PK\1\2", 0, content.rindex(b"images.npy"))
    for offset, size, value in changes.values():  # type: ignore[misc]
        content[at + offset : at + offset + size] = int(value).to_bytes(size, "little")
    return bytes(content)


def read_npz(path: Path) -> object:
    return load("npz", "test", path)


def npz_row(name: str, content: bytes | Callable[[], bytes], message: str) -> Row:
    return Row(f"npz {name}", written("x.npz", content), read_npz, message)


def with_labels(path: Path, count: int) -> Path:
    """The same zip with labels added."""
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("labels.npy", npy(np.zeros(count, np.uint8)))
    return path


def npz_bomb(folder: Path) -> Path:
    (folder / "x.npz").write_bytes(bomb("images", (2**20, 3, 32, 32)))
    return with_labels(folder / "x.npz", 2**20)


def sparse_npz(folder: Path) -> Path:
    header = npy_header((2**20, 3, 32, 32))
    size = len(header) + 3 * GIB
    name = "images.npy"
    local = (
        struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 20, 0, 0, 0, 0, 0, size, size, len(name), 0) + name.encode()
    )
    end = directory(name, size, size, len(local) + size, zipfile.ZIP_STORED)
    sparse("x.npz", local + header, len(local) + size + len(end), end)(folder)
    return with_labels(folder / "x.npz", 2**20)


NPZ = [
    npz_row("empty", b"", "not a whole .npz"),
    npz_row("text", b"x" * 1000, "not a whole .npz"),
    npz_row("truncated", lambda: npz()[:-60], "not a whole .npz"),
    npz_row("no images", lambda: npz(images=None), "no array 'images'"),
    npz_row("shape of 279 TiB", lambda: npz(images=npy_header((10**11, 3, 32, 32))), "should have 307200000000000"),
    Row("npz bomb of 3 GiB", npz_bomb, read_npz, "would take 3 GiB, from"),
    npz_row("claims 3 GiB", lambda: zip_of("labels.npy", b"\0\0", 3 * GIB), "not a whole .npz"),
    npz_row("claims 1000 bytes", lambda: packed_images_with(size=(24, 4, 1000)), "should have 768 bytes"),
    Row("npz sparse", sparse_npz, read_npz, "would take 3 GiB, from"),
    npz_row("wrong checksum", lambda: packed_images_with(crc=(16, 4, 7)), "Bad CRC"),
    npz_row("encrypted", lambda: packed_images_with(flags=(8, 2, 1)), "x.npz is"),
    npz_row("lzma", lambda: packed_images_with(method=(10, 2, 14)), "numpy does not use"),
    npz_row("unknown packing", lambda: packed_images_with(method=(10, 2, 77)), "numpy does not use"),
    npz_row("pickled", lambda: npz(images=np.array([{}], dtype=object)), "plain arrays"),
    npz_row("structured", lambda: npz(images=npy_header((4,), [("a", "<i4")]) + bytes(16)), "not that of a plain"),
    npz_row("structured by commas", lambda: npz(images=npy_header((4,), "i4,i4") + bytes(32)), "plain arrays"),
    npz_row("unknown type", lambda: npz(images=npy_header((4,), "<q99") + bytes(16)), "unknown type"),
    npz_row("longdouble", lambda: npz(images=np.zeros((4, 1, 2, 2), np.longdouble)), "images are float128"),
    npz_row("complex", lambda: npz(images=np.zeros((4, 1, 2, 2), complex)), "images are complex128"),
    npz_row("0-d images", lambda: npz(images=np.uint8(3)), "0 images but 4 labels"),
    npz_row("0-d labels", lambda: npz(labels=np.int64(3)), "labels are int64 of shape ()"),
    npz_row("0-d classes", lambda: npz(classes=np.array("cat")), "classes are <U3 of shape ()"),
    npz_row("no side", lambda: npz(images=np.zeros((4, 3, 0, 8), np.uint8)), "(4, 3, 0, 8)"),
    npz_row("no pixels, 10^15 images", lambda: npz(images=npy_header((10**15, 0, 3, 3))), "1000000000000000 images"),
    npz_row("header of 4 GiB", lambda: npz(images=b"\x93NUMPY\x02\x00" + b"\xff" * 8), "header of 'images.npy' has"),
    npz_row("deep header", lambda: npz(images=npy_header((), text="(" * 9000)), "not that of a plain array"),
    npz_row("minus header", lambda: npz(images=npy_header((), text="-" * 9000 + "1")), "not that of a plain array"),
    npz_row("5,000 digits", lambda: npz(images=npy_header((), text=f"{{'shape': ({DIGITS},)}}")), "not that of a"),
    npz_row("negative side", lambda: npz(images=npy_header((-4, 3, 8, 8))), "not that of a plain array"),
    npz_row("code as header", lambda: npz(images=npy_header((), text="__import__('os')")), "not that of a plain"),
    npz_row("labels of 2^62", lambda: npz(labels=np.full(4, 2**62)), "label 4611686018427387904 is outside"),
    npz_row("labels of 2^64-1", lambda: npz(labels=np.full(4, 2**64 - 1, np.uint64)), "is outside 0..99999"),
    npz_row("negative labels", lambda: npz(labels=np.full(4, -(2**63))), "label -9223372036854775808 is outside"),
    npz_row("text labels", lambda: npz(labels=np.array(["a"] * 4)), "labels are <U1"),
    npz_row("long class names", lambda: npz(classes=np.array(["x" * 5000])), "at most 1000 characters"),
    npz_row("10^15 empty classes", lambda: npz(classes=npy_header((10**15,), "<U0")), "at most 100000"),
    npz_row("nan", lambda: npz(images=np.full((4, 3, 8, 8), np.nan)), "should lie in [0,1]"),
]  # fmt: skip


# --- idx (MNIST) and CIFAR --------------------------------------------------------------------------------------

MNIST = "t10k-images-idx3-ubyte"


def idx_header(*shape: int) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + b"".join(side.to_bytes(4, "big") for side in shape)


def gzip_bomb(header: bytes, count: int) -> bytes:
    # The checksum at the end is wrong; nobody should come that far.
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + zeros_deflated(header, count) + bytes(8)


def read_mnist(path: Path) -> object:
    (path.parent / "t10k-labels-idx1-ubyte").write_bytes(idx_header(2) + bytes([3, 4]))
    return load("mnist", "test", path.parent)


def idx_row(name: str, content: bytes | Callable[[], bytes], message: str, *, ending: str = "") -> Row:
    return Row(f"idx {name}", written(MNIST + ending, content), read_mnist, message)


IDX = [
    idx_row("empty", b"", "starts with ''"),
    idx_row("another magic", b"\x89PNG" + bytes(100), "starts with '89504e47'"),
    idx_row("half a header", idx_header(2, 28, 28)[:9], "ends inside its header"),
    idx_row("promises 2^96 bytes", idx_header(2**32 - 1, 2**32 - 1, 2**32 - 1), "would take"),
    idx_row("promises 200 MB", idx_header(255_000, 28, 28) + bytes(100), "but holds 100"),
    idx_row("promises nothing", idx_header(0, 28, 28), "0 bytes"),
    idx_row("surplus", idx_header(2, 2, 2) + bytes(9), "more than 8"),
    Row("idx sparse", sparse(MNIST, idx_header(2**20, 64, 64), 16 + 4 * GIB), read_mnist, "would take 4 GiB"),
    idx_row("bomb", lambda: gzip_bomb(idx_header(2**20, 64, 64), 4 * GIB), "would take 4 GiB", ending=".gz"),
    idx_row("bomb behind", lambda: gzip_bomb(idx_header(2, 2, 2), 2 * GIB), "more than 8", ending=".gz"),
    idx_row("no gzip", b"no gzip at all", "cannot be read", ending=".gz"),
    idx_row("truncated gzip", lambda: gzip.compress(idx_header(2, 2, 2))[:-9], "cannot be read", ending=".gz"),
    idx_row("broken deflate", lambda: b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 99, "cannot be read", ending=".gz"),
]  # fmt: skip


def read_cifar10(path: Path) -> object:
    return load("cifar10", "test", path.parent)


def read_cifar100(path: Path) -> object:
    return load("cifar100", "test", path.parent)


CIFAR = [
    Row("cifar empty", written("test_batch.bin", b""), read_cifar10, "0 bytes; expected a positive multiple of 3073"),
    Row("cifar truncated", written("test_batch.bin", bytes(3072)), read_cifar10, "3072 bytes"),
    Row("cifar label", written("test_batch.bin", b"\xff" * 3073), read_cifar10, "label 255 of record 0"),
    Row("cifar sparse", sparse("test_batch.bin", b"", 3073 * 10**7), read_cifar10, "10000000 records"),
    Row("cifar coarse label", written("test.bin", bytes([20]) + bytes(3073)), read_cifar100, "label 20 of record 0"),
]  # fmt: skip


# --- pictures, alone and in a folder ------------------------------------------------------------------------------


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, *more: bytes, pixels: bytes | None = None) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(bytes(64)) if pixels is None else pixels)
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + body + chunk(b"IEND", b"")


def jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).convert("RGB").save(buffer, "JPEG")
    return buffer.getvalue()


def huge_jpeg() -> bytes:
    content = bytearray(jpeg())
    at = content.index(b"\xff\xc0") + 5  # height and width in the frame header
    content[at : at + 4] = struct.pack(">HH", 65500, 65500)
    return bytes(content)


def unpacks_to(size: int) -> bytes:
    return b"\x78\xda" + zeros_deflated(b"", size) + bytes(4)


def read_in_folder(path: Path) -> object:
    (path.parent / "cat").mkdir()
    path = path.rename(path.parent / "cat" / path.name)
    return load("folder", "test", path.parent.parent).floats()


def both(name: str, content: bytes | Callable[[], bytes], message: str, ending: str = ".png") -> list[Row]:
    file = written(f"a{ending}", content)
    return [
        Row(f"picture {name}", file, read_image, message),
        Row(f"data set of pictures {name}", file, read_in_folder, message),
    ]


PICTURES = [
    *both("empty", b"", "empty file"),
    *both("another format", b"GIF89a" + bytes(100), "not a PNG or JPEG"),
    *both("signature alone", b"\x89PNG\r\n\x1a\n" + b"\xff" * 100, "a.png: "),
    *both("of 3,600 megapixels", png(60_000, 60_000), "more than the allowed 89478485 pixels"),
    *both("of 91 megapixels, where Pillow only warns", png(9_100, 10_000), "more than the allowed 89478485"),
    *both("without size", png(0, 0), "a.png: "),
    *both("truncated", png(500, 500), "broken or unreadable"),
    *both("truncated jpeg", lambda: jpeg()[:-300], "broken or unreadable", ".jpg"),
    *both("jpeg of 4,290 megapixels", huge_jpeg, "more than the allowed 89478485", ".jpg"),
    *both("with a text bomb", lambda: png(8, 8, chunk(b"zTXt", b"a\0\0" + unpacks_to(GIB))), "a.png: "),
    *both("broken pixels", png(8, 8, pixels=b"\xff" * 50), "broken or unreadable"),
]


# --- safetensors ----------------------------------------------------------------------------------------------------


def weights(card: dict[str, str] | None = None, **changes: torch.Tensor | None) -> bytes:
    """A small classifier's file with some tensors changed (or left out: None) and other metadata."""
    network = build("small", classes=3, widths=[4], blocks=[0])
    tensors = {key: value for key, value in network.state_dict().items() if "num_batches" not in key}
    for key, value in changes.items():
        tensors[key.replace("__", ".")] = value  # type: ignore[assignment]
    about = {
        "arch": "small",
        "options": '{"widths": [4], "blocks": [0]}',
        "mean": "[0, 0, 0]",
        "std": "[1, 1, 1]",
    }
    return save(
        {key: value for key, value in tensors.items() if value is not None}, {**about, **(card or {})}
    )


def raw_safetensors(header: str | bytes, data: bytes = b"") -> bytes:
    header = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(header)) + header + data


def tensor_entry(dtype: str = "F32", shape: str = "[1]", offsets: str = "[0,4]") -> str:
    return f'{{"a": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}}}'


def weight_row(name: str, content: bytes | Callable[[], bytes], message: str) -> Row:
    return Row(f"safetensors {name}", written("x.safetensors", content), load_classifier, message)


def option_row(name: str, key: str, value: str, message: str) -> Row:
    return weight_row(name, lambda: weights({key: value}), message)


SPARSE_WEIGHTS = raw_safetensors(tensor_entry(shape=f"[{2 * GIB}]", offsets=f"[0,{8 * GIB}]"))

SAFETENSORS = [
    weight_row("empty", b"", "not a safetensors file"),
    weight_row("header of 2^63 bytes", struct.pack("<Q", 2**63) + bytes(100), "not a safetensors file"),
    weight_row("header beyond the file", struct.pack("<Q", 1000) + b"{}", "not a safetensors file"),
    weight_row("no JSON", raw_safetensors(b"\xff" * 64), "not a safetensors file"),
    weight_row("deep JSON", raw_safetensors('{"a":' + DEEP), "not a safetensors file"),
    weight_row("5,000 digits", raw_safetensors(tensor_entry(shape=f"[{DIGITS}]")), "not a safetensors file"),
    weight_row("shape beyond the file", raw_safetensors(tensor_entry(shape=f"[{2**40}]")), "not a safetensors"),
    weight_row("overflowing shape", raw_safetensors(tensor_entry(shape=f"[{2**62}, {2**62}]")), "not a safetensors"),
    weight_row("offsets backwards", raw_safetensors(tensor_entry(offsets="[4,0]"), bytes(4)), "not a safetensors"),
    weight_row("unknown type", raw_safetensors(tensor_entry("F99"), bytes(4)), "not a safetensors file"),
    weight_row("truncated", lambda: weights()[:-8], "not a safetensors file"),
    Row("safetensors sparse", sparse("x.safetensors", SPARSE_WEIGHTS, len(SPARSE_WEIGHTS) + 8 * GIB),
        load_classifier, "would take 8 GiB"),
    weight_row("no weights", lambda: save({}, {"mean": "[0]", "std": "[1]"}), "has no 'fc.weight'"),
    weight_row("no metadata", lambda: save({"fc.weight": torch.zeros(3, 4)}), "has no 'mean'"),
    weight_row("0-d fc.weight", lambda: weights(fc__weight=torch.tensor(1.0)), "'fc.weight' has shape ()"),
    weight_row("fc.weight of 2^40 classes", lambda: weights(fc__weight=torch.zeros(2**40, 0)), "classes=1099511627776"),
    weight_row("no bias", lambda: weights(fc__bias=None), "lacks 'fc.bias'"),
    weight_row("whole numbers", lambda: weights(fc__bias=torch.zeros(3, dtype=torch.int64)), "torch.int64"),
    weight_row("nan", lambda: weights(fc__bias=torch.full((3,), torch.nan)), "fc.bias' holds nan or infinity (3 of 3"),
    weight_row("infinity", lambda: weights(bn1__running_mean=torch.full((4,), -torch.inf)), "bn1.running_mean'"),
    option_row("mean is nan", "mean", "[NaN, 0, 0]", "list of finite numbers"),
    option_row("std is infinity", "std", "[Infinity, 1, 1]", "list of finite numbers"),
    option_row("std vanishes in float32", "std", "[1e-60, 1, 1]", "positive"),
    option_row("mean beyond float32", "mean", "[1e300, 1, 1]", "finite in every channel"),
    option_row("mean beyond every float", "mean", f"[1{'0' * 400}, 0, 0]", "list of finite numbers"),
    option_row("mean of 5,000 digits", "mean", f"[{DIGITS}]", "mean is not JSON"),
    option_row("deep mean", "mean", DEEP, "mean is nested too deeply"),
    option_row("mean is true", "mean", "[true, 0, 0]", "list of finite numbers"),
    option_row("deep options", "options", '{"a":' * 100_000, "options is nested too deeply"),
    option_row("options is a list", "options", "[]", "not a JSON object"),
    option_row("options set classes", "options", '{"classes": 5}', "options set 'classes'"),
    option_row("unknown option", "options", '{"x": 5}', "do not fit"),
    option_row("10^9 blocks", "options", '{"widths": [4], "blocks": [1000000000]}', "blocks[0]=1000000000"),
    option_row("10^12 channels", "options", '{"widths": [1000000000000], "blocks": [0]}', "widths[0]"),
    option_row("unknown network", "arch", "resnet5000", "is unknown"),
    option_row("size of 10^9", "input", '{"size": [1000000000, 1000000000]}', "size=1000000000"),
    option_row("size is no pair", "input", '{"size": 5}', "not size, crop and resize"),
    Row("checkpoint of another kind", written("x.safetensors", weights), read_checkpoint, "not a checkpoint"),
    Row("checkpoint with deep JSON", written("x.safetensors", lambda: save({}, {"checkpoint": DEEP})),
        read_checkpoint, "nested too deeply"),
    Row("checkpoint of texts",
        written("x.safetensors", lambda: save({}, {"checkpoint": '{"settings": {}, "data_sha256": "", "history": [1]}'})),
        read_checkpoint, "history[0] is 1; it should be a table"),
]  # fmt: skip


# --- texts ------------------------------------------------------------------------------------------------------------


def read_toml(path: Path) -> object:
    return experiment(str(path))


def toml_row(name: str, content: bytes | str, message: str) -> Row:
    return Row(f"toml {name}", written("x.toml", content), read_toml, message)


def journal_row(name: str, content: bytes | str, message: str) -> Row:
    return Row(f"json lines {name}", written("x.jsonl", content), Journal, message)


def read_folder(path: Path) -> object:
    return load("folder", "test", path.parent)


def read_nips17(path: Path) -> object:
    return load("nips17", "test", path.parent)


def table_row(name: str, content: bytes | str, message: str) -> Row:
    return Row(f"table {name}", written("labels.csv", content), read_folder, message)


TEXTS = [
    toml_row("deep lists", "id = " + DEEP, "nested too deeply"),
    toml_row("deep tables", "id = " + "{a=" * 5000, "nested too deeply"),
    toml_row("5,000 digits", f"id = {DIGITS}", "is not TOML"),
    toml_row("not UTF-8", b"id = '\xff'", "not UTF-8"),
    toml_row("zero bytes", bytes(100), "is not TOML"),
    toml_row("of other keys", "a = 1", "x.toml"),
    Row("toml sparse", sparse("x.toml", b"id = 1\n", 4 * GIB), read_toml, "4294967296 bytes"),
    journal_row("deep", f'["a", 1]\n["b", {DEEP}\n', "line 2 is nested too deeply"),
    journal_row("5,000 digits", f'["a", {DIGITS}]\n', "line 1 is not JSON"),
    journal_row("no pair", "[1, 2, 3]\n", "line 1 is not a list of a key and a value"),
    journal_row("no list", "5\n", "line 1 is not a list"),
    journal_row("no text as key", "[[], 1]\n", "line 1 is not a list"),
    journal_row("not UTF-8", b'["a", "\xff"]\n', "line 1 is not JSON"),
    Row("json lines sparse", sparse("x.jsonl", b'["a", 1]\n', 4 * GIB), Journal, "a line of more than"),
    table_row("of no image", "file,class\nmissing.png,cat\n", "names 'missing.png'"),
    table_row("that leads outside", "file,class\n../../../etc/passwd,cat\n", "no such image"),
    table_row("with a long field", "file,class\n" + "x" * 200_000 + ",cat\n", "field larger"),
    table_row("with a long name", "file,class\n" + "x" * 100_000 + ",cat\n", "no such image"),
    table_row("with zero bytes", b"file,class\n\0,cat\n", "labels.csv"),
    table_row("not UTF-8", b"file,class\n\xff,cat\n", "not UTF-8"),
    table_row("with nothing in it", "", "names no image"),
    table_row("with label 10^8", "file,class\na.png,100000000\n", "label 100000000 is outside"),
    Row("table sparse", sparse("labels.csv", b"file,class\n", 4 * GIB), read_folder, "4294967296 bytes"),
    Row("nips17 5,000 digits", written("labels.csv", f"file,class_index\na.png,{DIGITS}\n"), read_nips17, "is outside"),
    Row("nips17 not UTF-8", written("labels.csv", b"file,class_index\n\xff,1\n"), read_nips17, "not UTF-8"),
    Row("class map twice the same", written("classes.txt", "cat\ncat\n"), read_folder, "2 classes, 1 of them"),
]  # fmt: skip

ROWS = [*NPZ, *IDX, *CIFAR, *PICTURES, *SAFETENSORS, *TEXTS]


# --- the program --------------------------------------------------------------------------------------------------------


def kib(field: str) -> int:
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0])


def outcome(row: Row, folder: Path) -> dict[str, object]:
    path = row.file(folder)
    Path("/proc/self/clear_refs").write_text("5")  # the highest memory use, from now on
    before = kib("VmRSS")
    try:
        row.read(path)
        error: BaseException | None = None
    except Exception as raised:
        error = raised
    return {
        "ours": isinstance(error, VqshieldError),
        "error": repr(error)[:2000],
        "message": str(error),
        "file": path.name,
        "peak": (kib("VmHWM") - before) * 1024,
    }


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (kib("VmSize") * 1024 + GIB,) * 2)
    found = {}
    for row in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            found[row.name] = outcome(row, Path(folder))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
