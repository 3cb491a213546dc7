"""Image files: what a viewer shows is what comes in, what is carried stays, broken files are named."""

import io
import struct
import sys
import zlib

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from vqshield.core.errors import FileFormatError, InvalidInputError, MissingExtraError
from vqshield.core.files import write_atomically
from vqshield.images.files import Picture, encode_png, picture_to_png, read_image

RNG = np.random.default_rng(5)
COLOURS = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)  # not square, so that a wrong turn shows


def as_bytes(colour):
    return (colour * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()


def png_of(*chunks):
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def header(width, height, bits, colour_type):
    return b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)


# --- orientation -------------------------------------------------------------------------------------


# The eight ways in which a camera may store one upright picture.
STORED = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: np.rot90(upright),  # to be shown turned to the right, so stored turned to the left
    7: lambda upright: upright[::-1, ::-1].swapaxes(0, 1),
    8: lambda upright: np.rot90(upright, -1),
}


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_stored_orientation_is_applied_to_the_pixels(tmp_path, orientation, suffix):
    upright = np.kron(COLOURS, np.ones((16, 16, 1), np.uint8))  # whole JPEG blocks, so that loss stays small
    pixels = STORED[orientation](upright)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{suffix}"
    options = {"quality": 100, "subsampling": 0} if suffix == "jpg" else {}
    Image.fromarray(np.ascontiguousarray(pixels)).save(path, exif=exif, **options)
    found = as_bytes(read_image(path).colour).astype(int)
    assert found.shape == upright.shape
    assert np.abs(found - upright).max() <= (8 if suffix == "jpg" else 0)


def test_the_result_has_no_orientation_left_to_apply_twice(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(COLOURS).save(tmp_path / "in.png", exif=exif)
    write_atomically(tmp_path / "out.png", picture_to_png(read_image(tmp_path / "in.png")))
    with Image.open(tmp_path / "out.png") as image:
        assert image.size == (5, 7)
        assert not image.getexif()


def test_damaged_exif_does_not_stop_a_picture(tmp_path):
    Image.fromarray(COLOURS).save(tmp_path / "in.jpg", exif=b"Exif\0\0MM\0*\xff\xff\xff\xffgarbage")
    assert read_image(tmp_path / "in.jpg").colour.shape == (3, 5, 7)


def test_exif_that_an_older_pillow_chokes_on_does_not_either(tmp_path, monkeypatch):
    def choke(self):
        raise SyntaxError("not a TIFF file")

    monkeypatch.setattr(Image.Image, "getexif", choke)
    (tmp_path / "in.png").write_bytes(encode_png(COLOURS))
    assert read_image(tmp_path / "in.png").colour.shape == (3, 5, 7)


# --- modes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "channels", "has_alpha"),
    [
        ("L", 1, False),
        ("LA", 1, True),
        ("RGB", 3, False),
        ("RGBA", 3, True),
        ("1", 1, False),
        ("P", 3, False),
    ],
)
def test_modes_survive_a_round_trip(tmp_path, mode, channels, has_alpha):
    image = Image.fromarray(np.dstack([COLOURS, COLOURS[..., :1]]) if has_alpha else COLOURS).convert(mode)
    image.save(tmp_path / "in.png")
    picture = read_image(tmp_path / "in.png")
    assert picture.colour.shape == (channels, 5, 7)
    assert picture.colour.dtype == torch.float32
    assert (picture.alpha is not None) is has_alpha
    write_atomically(tmp_path / "out.png", picture_to_png(picture))
    with Image.open(tmp_path / "out.png") as out:
        assert out.mode == {"1": "L", "P": "RGB"}.get(mode, mode)
        assert np.array_equal(np.asarray(out), np.asarray(image.convert(out.mode)))


def test_alpha_is_unchanged_beside_changed_colour(tmp_path):
    rgba = np.dstack([COLOURS, RNG.integers(0, 256, (5, 7), dtype=np.uint8)])
    Image.fromarray(rgba).save(tmp_path / "in.png")
    picture = read_image(tmp_path / "in.png")
    write_atomically(tmp_path / "out.png", picture_to_png(Picture(1 - picture.colour, picture.alpha)))
    with Image.open(tmp_path / "out.png") as out:
        assert np.array_equal(np.asarray(out)[..., 3], rgba[..., 3])
        assert np.array_equal(np.asarray(out)[..., :3], 255 - rgba[..., :3])


@pytest.mark.parametrize("mode", ["P", "RGB", "L"])
def test_a_transparent_colour_becomes_alpha(tmp_path, mode):
    image = Image.new(mode, (4, 3), 0)
    if mode == "P":
        image.putpalette(range(30))
    image.putpixel((1, 2), (9, 9, 9) if mode == "RGB" else 9)
    image.save(tmp_path / "in.png", transparency=(9, 9, 9) if mode == "RGB" else 9)
    alpha = read_image(tmp_path / "in.png").alpha
    assert alpha is not None
    assert int((alpha == 0).sum()) == 1
    assert alpha[2, 1] == 0


def test_sixteen_bit_grey_keeps_its_levels(tmp_path):
    levels = np.array([[0, 257, 1000], [30000, 65534, 65535]], np.uint16)
    Image.fromarray(levels).save(tmp_path / "in.png")
    colour = read_image(tmp_path / "in.png").colour
    assert colour.shape == (1, 2, 3)
    assert torch.allclose(colour[0], torch.from_numpy(levels.astype(np.float32) / 65535))


def test_sixteen_bit_grey_with_a_transparent_level(tmp_path):
    rows = b"".join(b"\0" + struct.pack(">HH", *row) for row in ((7, 300), (65535, 7)))
    data = png_of(
        header(2, 2, 16, 0), (b"tRNS", struct.pack(">H", 7)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    )
    (tmp_path / "in.png").write_bytes(data)
    alpha = read_image(tmp_path / "in.png").alpha
    assert alpha is not None
    assert alpha.tolist() == [[0, 255], [255, 0]]


def test_sixteen_bit_grey_with_alpha_stays_grey(tmp_path):
    rows = b"\0" + struct.pack(">HHHH", 0x1200, 0x8000, 0xFF00, 0xFFFF)
    data = png_of(header(2, 1, 16, 4), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    (tmp_path / "in.png").write_bytes(data)
    picture = read_image(tmp_path / "in.png")
    assert as_bytes(picture.colour)[0, :, 0].tolist() == [0x12, 0xFF]
    assert picture.alpha is not None
    assert picture.alpha.tolist() == [[0x80, 0xFF]]


def test_cmyk_becomes_rgb(tmp_path):
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "in.jpg", quality=100)
    red, green, blue = as_bytes(read_image(tmp_path / "in.jpg").colour)[4, 4].tolist()
    assert red > 200
    assert max(green, blue) < 60


def test_icc_profile_is_kept_where_it_describes_the_pixels(tmp_path):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    Image.fromarray(COLOURS).save(tmp_path / "rgb.jpg", icc_profile=profile)
    Image.new("CMYK", (8, 8)).save(tmp_path / "cmyk.jpg", icc_profile=profile[:16] + b"CMYK" + profile[20:])
    write_atomically(tmp_path / "out.png", picture_to_png(read_image(tmp_path / "rgb.jpg")))
    with Image.open(tmp_path / "out.png") as out:
        assert out.info["icc_profile"] == profile
    assert read_image(tmp_path / "cmyk.jpg").icc_profile is None


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(height=st.integers(1, 9), width=st.integers(1, 9), channels=st.integers(1, 4), seed=st.integers(0, 99))
def test_png_is_lossless(tmp_path, height, width, channels, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    (tmp_path / "in.png").write_bytes(encode_png(pixels))
    picture = read_image(tmp_path / "in.png")
    write_atomically(tmp_path / "out.png", picture_to_png(picture))
    with Image.open(tmp_path / "out.png") as out:
        assert np.array_equal(np.asarray(out).reshape(pixels.shape), pixels)
    assert (picture.width, picture.height) == (width, height)


# --- what cannot be read -------------------------------------------------------------------------------


def jpeg_bytes():
    buffer = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


def gif_bytes():
    buffer = io.BytesIO()
    Image.fromarray(COLOURS).save(buffer, "GIF")
    return buffer.getvalue()


BROKEN = {
    "empty": b"",
    "text": b"hello, this is no picture at all",
    "truncated jpeg": jpeg_bytes()[:1500],
    "jpeg header only": jpeg_bytes()[:20],
    "truncated png": encode_png(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8))[:5000],
    "png without pixels": png_of(header(4, 4, 8, 2), (b"IEND", b"")),
    "png with impossible depth": png_of(header(4, 4, 3, 2), (b"IEND", b"")),
    "png with broken pixels": png_of(header(4, 4, 8, 2), (b"IDAT", b"nonsense"), (b"IEND", b"")),
    "png of no size": png_of(header(0, 0, 8, 2), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")),
    "another format": gif_bytes(),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_named(tmp_path, kind):
    path = tmp_path / "broken.png"
    path.write_bytes(BROKEN[kind])
    with pytest.raises(FileFormatError, match=r"broken\.png: "):
        read_image(path)


def test_an_empty_file_is_called_empty(tmp_path):
    (tmp_path / "nothing.png").touch()
    with pytest.raises(FileFormatError, match="empty file"):
        read_image(tmp_path / "nothing.png")


@pytest.mark.parametrize("factor", [1, 3])  # Pillow alone warns up to twice its limit, and refuses beyond
def test_a_decompression_bomb_is_refused_by_its_header(tmp_path, factor):
    side = 10_000 * factor
    (tmp_path / "bomb.png").write_bytes(png_of(header(side, side, 8, 2), (b"IDAT", b""), (b"IEND", b"")))
    with pytest.raises(FileFormatError, match=r"bomb\.png: more than the allowed 89478485 pixels"):
        read_image(tmp_path / "bomb.png")


def test_the_pixel_limit_is_exact_and_leaves_pillow_as_it_was(tmp_path):
    before = Image.MAX_IMAGE_PIXELS
    Image.fromarray(COLOURS).save(tmp_path / "in.png")
    assert read_image(tmp_path / "in.png", max_pixels=35).width == 7
    with pytest.raises(FileFormatError, match="34 pixels"):
        read_image(tmp_path / "in.png", max_pixels=34)
    assert before == Image.MAX_IMAGE_PIXELS


def test_paths_that_lead_to_no_file(tmp_path):
    with pytest.raises(InvalidInputError, match=r"gone\.png: no such file"):
        read_image(tmp_path / "gone.png")
    with pytest.raises(InvalidInputError, match="not a regular file"):
        read_image(tmp_path)
    with pytest.raises(InvalidInputError, match="max_pixels=0"):
        read_image(tmp_path / "gone.png", max_pixels=0)


# --- writing --------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "out.png"
    target.write_bytes(b"the old one")

    def interrupted(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, picture_to_png(Picture(torch.zeros(1, 2, 2))))
    assert target.read_bytes() == b"the old one"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    "pixels", [np.zeros((2, 2), np.float32), np.zeros((2, 2, 5), np.uint8), np.zeros(4, np.uint8)]
)
def test_only_bytes_of_a_known_layout_are_encoded(pixels):
    with pytest.raises(InvalidInputError, match="valid is uint8"):
        encode_png(pixels)


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r'pip install "\.\[cli\]"'):
        encode_png(np.zeros((2, 2), np.uint8))
