"""The palette example: right colours, the same in every batch, lossless where that is possible."""

import sys

import numpy as np
import pytest
import torch
from conftest import noise_images
from PIL import Image

import palette as palettes
import vqshield as vq
from palette import encode_indexed_png, index_files, palette


def few_colours(count: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    colours = torch.randint(0, 256, (count, 3), generator=generator, dtype=torch.uint8)
    return colours[torch.randint(0, count, shape, generator=generator)].permute(0, 3, 1, 2).contiguous()


def error(images: torch.Tensor, found: palettes.Palettes) -> float:
    return float((images.double() - found.images().double() / 255).square().mean())


def test_each_pixel_has_its_nearest_colour(natural) -> None:
    found = palette(natural[:3], 8)
    pixels = natural[:3].flatten(2).transpose(1, 2)
    distances = torch.cdist(pixels.double(), found.colours.double() / 255)
    chosen = distances.gather(2, found.indices.flatten(1).long()[..., None])[..., 0]
    assert torch.allclose(chosen, distances.amin(2), atol=1e-6)
    assert error(natural[:3], found) < 0.25 * error(natural[:3], palette(natural[:3], 1))


@pytest.mark.parametrize("dither", [False, True])
def test_an_image_has_one_result_in_every_batch(natural, dither: bool) -> None:
    images = (natural[:4] * 255).byte()
    together = palette(images, 5, dither=dither, sample=200, restarts=2)
    for number in range(4):
        alone = palette(images[number : number + 1], 5, dither=dither, sample=200, restarts=2)
        assert torch.equal(alone.colours[0], together.colours[number])
        assert torch.equal(alone.indices[0], together.indices[number])


@pytest.mark.parametrize("dither", [False, True])
def test_no_more_colours_than_asked_for_is_no_loss(dither: bool) -> None:
    images = few_colours(9, 1, 90, 80)
    images[0, :, 3, 4] = 1  # one pixel of a tenth colour, which a sample misses
    found = palette(images, 10, sample=100, dither=dither)
    assert torch.equal(found.images(), images)


def test_a_sample_is_nearly_as_good_as_all_pixels() -> None:
    y, x = torch.meshgrid(torch.linspace(0, 1, 160), torch.linspace(0, 1, 200), indexing="ij")
    images = torch.stack([y, x, (y * x).sqrt()])[None] * 0.9 + 0.1 * noise_images(1, 3, 160, 200)
    all_pixels = error(images, palette(images, 16, sample=160 * 200))
    assert error(images, palette(images, 16, sample=2000)) < 1.1 * all_pixels


def test_dithering_keeps_the_mean_colour_of_a_smooth_area() -> None:
    grey, black_and_white = torch.full((1, 1, 40, 40), 0.4), torch.tensor([[[0.0], [1.0]]])
    assert float(palettes._diffuse(grey, black_and_white).double().mean()) == pytest.approx(0.4, abs=0.01)


def test_floyd_steinberg_is_that_of_the_loops() -> None:
    images, colours = noise_images(1, 3, 9, 7), noise_images(1, 4, 3, seed=1)
    work, expected = images[0].clone(), torch.zeros(9, 7, dtype=torch.uint8)
    for y in range(9):
        for x in range(7):
            wanted = work[:, y, x].clamp(0, 1)
            expected[y, x] = (colours[0] - wanted).square().sum(1).argmin()
            missing = wanted - colours[0, int(expected[y, x])]
            for dy, dx, share in ((0, 1, 7), (1, -1, 3), (1, 0, 5), (1, 1, 1)):
                if y + dy < 9 and 0 <= x + dx < 7:
                    work[:, y + dy, x + dx] += missing * share / 16
    assert torch.equal(palettes._diffuse(images, colours).view(9, 7), expected)


def test_transparent_pixels_are_one_colour_whatever_is_below_them() -> None:
    images = torch.randint(0, 256, (1, 4, 16, 16), generator=torch.Generator().manual_seed(0)).byte()
    images[:, 3] = 0
    images[:, :, :, :8] = torch.tensor([200, 10, 30, 255], dtype=torch.uint8)[:, None, None]
    found = palette(images, 2).images()
    assert torch.equal(found[..., :8], images[..., :8])
    assert int(found[:, 3, :, 8:].max()) == 0


@pytest.mark.parametrize(
    ("images", "settings", "message"),
    [
        (torch.ones(1, 5, 4, 4), {"k": 2}, "5 channels"),
        (torch.ones(3, 4, 4), {"k": 2}, "4 dimensions"),
        (torch.ones(1, 3, 4, 4).half(), {"k": 2}, "float16"),
        (torch.full((1, 3, 4, 4), 1.5), {"k": 2}, "1.5"),
        (torch.tensor([2.0, 0.4]).view(1, 2, 1, 1).expand(1, 2, 4, 4), {"k": 2}, "contain 2;"),
        (torch.ones(1, 3, 4, 4), {"k": 257}, "k=257"),
        (torch.ones(1, 3, 4, 4), {"k": 4, "sample": 3}, "sample=3"),
    ],
)
def test_what_cannot_be_taken_is_named(images, settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        palette(images, **settings)


@pytest.mark.parametrize(("mode", "colours", "bits"), [("RGB", 4, 2), ("L", 16, 4), ("RGBA", 100, 8)])
def test_an_indexed_png_shows_the_palette(tmp_path, mode: str, colours: int, bits: int) -> None:
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    found = palette(noise_images(1, channels, 20, 30), colours)
    path = tmp_path / "a.png"
    path.write_bytes(encode_indexed_png(found))
    assert path.read_bytes()[24:26] == bytes([bits, 3])  # indexed, with so many bits a pixel
    with Image.open(path) as image:
        pixels = np.asarray(image.convert(mode)).reshape(20, 30, channels)
    assert np.array_equal(pixels, found.images()[0].permute(1, 2, 0).numpy())


def test_files_are_smaller_than_those_that_purify_writes(natural, tmp_path) -> None:
    pixels = np.kron((natural[:4] * 255).byte().numpy(), np.ones((1, 1, 4, 4), np.uint8))
    for number, each in enumerate(pixels):
        Image.fromarray(each.transpose(1, 2, 0)).save(tmp_path / f"{number}.png")
    indexed, purified = (tmp_path.parent / f"{tmp_path.name}-{name}" for name in ("indexed", "purified"))
    assert [*index_files([tmp_path], indexed, colours=25).values()] == [None] * 4
    results = vq.purify(tmp_path, purified, defense="randdisc:codes=25", seed=0)
    assert [each.error for each in results] == [None] * 4
    sizes = [sum(file.stat().st_size for file in folder.glob("*.png")) for folder in (indexed, purified)]
    assert sizes[0] < 0.8 * sizes[1]


def test_pictures_become_indexed_and_a_broken_one_fails_alone(tmp_path, monkeypatch, capsys) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"nothing")
    out = tmp_path / "out"
    monkeypatch.setattr(
        sys, "argv", ["palette.py", str(tmp_path), "--out", str(out), "--colors", "5", "--dither"]
    )
    with pytest.raises(SystemExit, match="1"):
        palettes.main()
    told = capsys.readouterr()
    assert "1 of 2 pictures" in told.out
    assert "b.png" in told.err
    with Image.open(out / "a.png") as image:
        assert (image.mode, image.size, len(image.getcolors())) == ("P", (30, 20), 5)
