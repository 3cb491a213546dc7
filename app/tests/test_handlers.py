"""What the page's events call, without Gradio: pictures in, pictures and sentences out."""

import io
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield_app import fragments
from vqshield_app.choices import PRESETS, SETTINGS, list_choices, settings_of, usual
from vqshield_app.experiments import ATTACKS, attack, shield
from vqshield_app.handlers import Controls, View, show_attack, show_shield
from vqshield_app.subjects import OFFERED, Limits, bundled, offered_images, uploaded

LIMITS = Limits(attack_seconds=60.0)
DRAWN = re.compile(r"(\d+) of 20")


def controls(defense: str = "swrd", **changes: float | str | None) -> Controls:
    return replace(Controls(number=0, upload=None, **asdict(usual(defense))), **changes)


def saved(folder: Path, name: str, image: Image.Image, **options: object) -> str:
    image.save(folder / name, **options)
    return str(folder / name)


def photo(height: int, width: int) -> Image.Image:
    """Left half dark, right half light, a red corner above on the left."""
    pixels = np.full((height, width, 3), 40, np.uint8)
    pixels[:, width // 2 :] = 200
    pixels[: height // 4, : width // 4] = (250, 10, 10)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("defense", list_choices())
def test_a_bundled_picture_is_shown_clean_and_shielded(defense: str) -> None:
    view = show_shield(controls(defense), LIMITS, seed=1)
    assert view.pair is not None
    clean, shielded = view.pair
    assert clean.shape == shielded.shape == (384, 384, 3)
    # Every pixel of the picture is a square of 12×12: nothing was blurred on the way.
    assert np.array_equal(clean[::12, ::12], offered_images().images[0].permute(1, 2, 0).numpy())
    assert np.array_equal(shielded, shielded[::12, ::12].repeat(12, 0).repeat(12, 1))
    assert not np.array_equal(clean, shielded)
    assert sum(map(int, DRAWN.findall(view.answers or ""))) == 20
    assert "adaptive attack" in (view.worth or "")
    assert view.notice == ""


@pytest.mark.parametrize(
    ("defense", "size"), [("randdisc", 1), ("prd", 2), ("swrd", 3), *((name, 3) for name in PRESETS)]
)
def test_the_codebook_is_of_the_draw_that_is_shown(defense: str, size: int) -> None:
    chosen = controls(defense).choice()
    found = shield(bundled(4), chosen, seed=3)
    assert found.centres.shape == (25, 3, size, size)
    if defense in ("randdisc", "prd"):  # there, the picture is made of nothing but its centres
        centres = {each.numpy().round(6).tobytes() for each in found.centres}
        tiles = found.quantized.unfold(1, size, size).unfold(2, size, size).permute(1, 2, 0, 3, 4)
        tiles = tiles.reshape(-1, 3, size, size)
        assert {each.contiguous().numpy().round(6).tobytes() for each in tiles} <= centres


def test_a_seed_repeats_a_picture_and_none_does_not() -> None:
    first, second, fresh = (show_shield(controls(), LIMITS, seed=seed).pair for seed in (5, 5, None))
    assert first is not None
    assert second is not None
    assert fresh is not None
    assert np.array_equal(first[1], second[1])
    assert not np.array_equal(first[1], fresh[1])


def test_fewer_centres_show_fewer_colours() -> None:
    def colours(view: View) -> int:
        assert view.pair is not None
        return len(np.unique(view.pair[1].reshape(-1, 3), axis=0))

    few, many = (show_shield(controls("randdisc", codes=k), LIMITS, seed=0) for k in (4, 60))
    assert colours(few) == 4
    assert 4 < colours(many) <= 60


def test_the_attack_through_the_shield_changes_the_answer() -> None:
    view = show_attack(controls("prd", number=3), "through", 8, LIMITS, seed=0)
    assert view.pair is not None
    clean, attacked = (each[::12, ::12].astype(int) for each in view.pair)
    assert 0 < np.abs(clean - attacked).max() <= 8
    said = re.search(r"(\d+) of 20 samples were.*?after the attack <strong>(\d+) of 20<", view.answers or "")
    assert said is not None
    had, kept = map(int, said.groups())
    assert had >= 15
    assert kept <= 2


@pytest.mark.parametrize("eps", [1, 16])
def test_an_attack_has_the_budget_that_was_chosen(eps: int) -> None:
    chosen = controls("prd")
    found = attack(bundled(3), chosen.choice(), "ignorant", eps, limits=LIMITS, seed=0)
    change = found.image.int() - found.clean.int()
    assert found.largest == int(change.abs().max()) == eps
    shown = fragments.magnified(found)[::12, ::12].astype(int)
    assert np.array_equal(shown, (128 + 16 * change.permute(1, 2, 0).numpy()).clip(0, 255))
    assert f"At most {eps}/255 per value" in fragments.attack_answers(found, chosen.choice(), "ignorant")


@pytest.mark.parametrize("eps", [0, 17, None])
def test_a_budget_that_cannot_be_gets_a_message(eps: float) -> None:
    assert f"epsilon={eps} should be" in show_attack(controls("prd"), "ignorant", eps, LIMITS).notice


@pytest.mark.parametrize("kind", sorted(ATTACKS))
def test_every_attack_keeps_to_its_budget_and_its_time(kind: str) -> None:
    stopped = show_attack(controls("prd"), kind, 8, Limits(attack_seconds=0.0), seed=0)
    assert "stopped after 0 s" in stopped.notice
    assert stopped.pair is None
    assert stopped.worth is not None  # the figures stay in view


def test_an_upload_is_shielded_at_its_size_and_classified_at_the_classifiers(tmp_path: Path) -> None:
    path = saved(tmp_path, "photo.png", photo(60, 200))
    view = show_shield(controls("prd", upload=path), LIMITS, seed=0)
    assert view.pair is not None
    assert view.pair[0].shape == (60, 200, 3)
    assert np.array_equal(view.pair[0], np.asarray(photo(60, 200)))
    assert "200×60" in view.notice
    assert "32×32" in view.notice
    assert "The picture shows" not in (view.answers or "")  # nobody knows what it shows
    attacked = show_attack(controls("prd", upload=path), "ignorant", 8, LIMITS, seed=0)
    assert attacked.pair is not None
    assert attacked.pair[1].shape == (384, 384, 3)
    assert "The class of your picture is not known" in (attacked.answers or "")


def test_a_large_upload_is_reduced_and_says_so(tmp_path: Path) -> None:
    subject = uploaded(Path(saved(tmp_path, "photo.jpg", photo(800, 1000))), Limits(max_side=100))
    assert subject.picture.shape == (3, 80, 100)
    assert "1000×800 pixels was reduced to 100×80" in subject.note


def test_a_turned_photo_stands_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° to the right: the camera was held upright
    path = saved(
        tmp_path, "turned.jpg", photo(64, 48).transpose(Image.Transpose.ROTATE_90), exif=exif, quality=95
    )
    picture = uploaded(Path(path), LIMITS).picture
    upright = torch.from_numpy(np.asarray(photo(64, 48)).copy()).permute(2, 0, 1) / 255
    assert picture.shape == (3, 64, 48)
    assert float((picture - upright).abs().mean()) < 0.02


def test_transparent_and_grey_pictures_are_taken(tmp_path: Path) -> None:
    clear = uploaded(Path(saved(tmp_path, "clear.png", Image.new("RGBA", (40, 40), (255, 0, 0, 0)))), LIMITS)
    assert float(clear.picture.min()) == 1.0  # white shows through
    grey = uploaded(Path(saved(tmp_path, "grey.png", Image.new("L", (40, 40), 51))), LIMITS)
    assert grey.picture.shape == (3, 40, 40)
    assert torch.allclose(grey.picture, torch.tensor(0.2))


def _bomb() -> bytes:
    """12,000 × 12,000 pixels of one colour, in a few kilobytes."""
    buffer = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(buffer, "PNG")
    return buffer.getvalue()


def _cut_off() -> bytes:
    buffer = io.BytesIO()
    photo(64, 64).save(buffer, "PNG")
    return buffer.getvalue()[:-60]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"I am no picture", "not a PNG or JPEG image"),
        (b"", "empty file"),
        (_cut_off, "broken or unreadable image"),
        (_bomb, "more than the allowed 16000000 pixels"),
    ],
)
def test_a_hostile_file_gets_a_message(tmp_path: Path, content: object, says: str) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(content() if callable(content) else content)
    for view in (
        show_shield(controls(upload=str(path)), LIMITS),
        show_attack(controls(upload=str(path)), "ignorant", 8, LIMITS),
    ):
        assert says in view.notice
        assert 'role="alert"' in view.notice
        assert str(tmp_path) not in view.notice  # where uploads lie is nobody's business
        assert (view.pair, view.answers, view.codebook) == (None, None, None)


def test_too_many_bytes_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    path.write_bytes(b"\0" * 2048)
    with pytest.raises(FileFormatError, match=r"large\.png: 0\.0 MiB; at most 0\.0009\d+ MiB"):
        uploaded(path, Limits(max_bytes=1024))


def test_an_upload_that_was_cleared_away_gets_a_message(tmp_path: Path) -> None:
    view = show_shield(controls(upload=str(tmp_path / "old.png")), LIMITS)
    assert "old.png is no longer here; upload it again" in view.notice


def test_what_a_file_is_called_cannot_become_markup(tmp_path: Path) -> None:
    path = tmp_path / "<img src=x onerror=alert(1)>.png"
    path.write_bytes(b"no picture")
    view = show_shield(controls(upload=str(path)), LIMITS)
    assert "&lt;img" in view.notice
    assert "<img" not in view.notice


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"codes": 101}, "k=101 should be from 1 to 100"),
        ({"codes": 2.5}, "k=2.5 should be a whole number"),
        ({"size": 5}, "s=5 should be from 1 to 4"),
        ({"sigma": -1.0}, "sigma=-1.0 should be from 0 to 20"),
        ({"beta": float("nan")}, "beta=nan should be from 0 to 10"),
        ({"number": OFFERED}, f"picture={OFFERED} should be from 0 to {OFFERED - 1}"),
        ({"sigma": None}, "sigma=None should be a number"),
    ],
)
def test_a_setting_that_cannot_be_gets_a_message(changes: dict[str, float], says: str) -> None:
    assert says in show_shield(controls(**changes), LIMITS).notice


def test_an_unknown_defense_gets_a_message() -> None:
    assert (
        "defense=&#x27;moat&#x27; is unknown"
        in show_shield(replace(controls(), defense="moat"), LIMITS).notice
    )


def test_a_picture_too_small_for_the_defense_gets_a_message(tmp_path: Path) -> None:
    path = saved(tmp_path, "tiny.png", photo(2, 2))
    assert "size=3 should be at most min(h, w)=2" in show_shield(controls(upload=path), LIMITS).notice


def test_an_unknown_attack_gets_a_message() -> None:
    assert "attack=&#x27;siege&#x27; is unknown" in show_attack(controls(), "siege", 8, LIMITS).notice


def test_sliders_that_a_defense_does_not_have_are_fixed() -> None:
    fixed = {name: {*SETTINGS} - {*settings_of(name)} for name in list_choices()}
    assert fixed == {
        "randdisc": {"size", "beta"}, "prd": {"beta"}, "swrd": set(),
        **{name: {*SETTINGS} for name in PRESETS},
    }  # fmt: skip
    with pytest.raises(InvalidInputError, match="moat"):
        usual("moat")


def test_a_codebook_sheet_has_a_tile_for_every_centre() -> None:
    centres = torch.linspace(0.1, 0.9, 13)[:, None, None, None].expand(13, 3, 2, 2)
    sheet = fragments.codebook_sheet(centres)
    shown = np.unique(sheet[sheet[..., 3] == 255][:, 0])
    assert len(shown) == 13
    assert (sheet[..., 3] == 255).sum() == 13 * 24 * 24
