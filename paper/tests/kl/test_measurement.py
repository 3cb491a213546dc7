"""The KL diagnostic of an image: a record that says what it is, and can be repeated from itself."""

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vqshield.core.errors import InvalidInputError
from vqshield.core.serialization import to_plain
from vqshield.defenses import PRD, SWRD, Defense, RandDisc
from vqshield_paper.kl import MixtureSettings, sorted_codebooks
from vqshield_paper.kl.measurement import DivergenceSettings, Measurement, codebooks, measure

SETTINGS = DivergenceSettings(
    codebooks=150,
    label_codebooks=4,
    lines=8,
    samples=500,
    mixture=MixtureSettings(components=2, covariance="diag", iterations=10),
    batch=64,
)
SCRIPT = Path(__file__).resolve().parents[2] / "research" / "kl_diagnostic.py"


@pytest.fixture(scope="module")
def image() -> Tensor:
    return torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def moved(image: Tensor) -> Tensor:
    signs = torch.rand(image.shape, generator=torch.Generator().manual_seed(2)).round() * 2 - 1
    return (image + signs * 8 / 255).clamp(0, 1)


def timeless(found: Measurement) -> Measurement:
    return replace(found, seconds={})


def test_the_record_says_what_was_measured_and_how(image: Tensor, moved: Tensor) -> None:
    stages: list[str] = []
    (found,) = measure(PRD(codes=4), image, moved, settings=SETTINGS, report=stages.append)
    diagnostic = found.diagnostic
    assert diagnostic.name == "diagnostic"
    assert (diagnostic.codebooks, diagnostic.dimensions) == (150, 4 * 12)
    assert found.settings.mixture.covariance == diagnostic.covariance == "diag"
    assert found.distance.linf == pytest.approx(8 / 255, abs=1e-6)
    assert found.defense["name"] == "prd"
    assert "torch" in found.environment
    assert len(set(found.seeds.values())) == 5
    assert list(found.seconds) == stages
    assert stages[:4] == ["codebooks clean", "codebooks again", "codebooks moved", "labels"]
    assert 0 < diagnostic.second.value <= diagnostic.second.bound
    assert diagnostic.second.bound == pytest.approx(found.proved.second, rel=1e-6)
    assert json.loads(json.dumps(to_plain(found))) == to_plain(found)


def test_a_moved_image_is_further_away_than_the_same_one(image: Tensor) -> None:
    settings = replace(SETTINGS, codebooks=1000)
    found = measure(PRD(codes=2), image, torch.cat([image * 0.9, image]), settings=settings)
    far, near = (each.diagnostic for each in found)
    assert far.kl.value > 10 * far.floor.value
    assert near.kl.value < 3 * near.floor.value
    assert near.second.value == 0
    assert near.floor == far.floor


def test_several_at_once_are_measured_as_each_alone(image: Tensor, moved: Tensor) -> None:
    several = torch.cat([moved, image, image * 0.9])
    together = measure(PRD(codes=4), image, several, settings=SETTINGS)
    alone = [measure(PRD(codes=4), image, each, settings=SETTINGS)[0] for each in torch.split(several, 1)]
    assert list(map(timeless, together)) == list(map(timeless, alone))


def test_the_second_term_can_be_left_out(image: Tensor, moved: Tensor) -> None:
    (found,) = measure(PRD(codes=4), image, moved, settings=replace(SETTINGS, label_codebooks=0))
    assert found.diagnostic.second is None
    assert "not computed" in found.second_is
    assert found.proved.second > 0


def test_batches_and_the_seed_of_the_defense_decide_nothing(image: Tensor, moved: Tensor) -> None:
    state = torch.random.get_rng_state()
    (one,) = measure(PRD(codes=4, seed=1), image, moved, settings=SETTINGS)
    (two,) = measure(PRD(codes=4, seed=2), image, moved, settings=replace(SETTINGS, batch=7))
    assert timeless(one) == replace(timeless(two), settings=SETTINGS)
    (other,) = measure(PRD(codes=4), image, moved, settings=replace(SETTINGS, seed=3))
    assert other.diagnostic.kl != one.diagnostic.kl
    assert other.diagnostic.second.value != one.diagnostic.second.value
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_codebooks_are_those_of_streams_in_a_row(image: Tensor) -> None:
    defense = PRD(codes=4, seed=5)
    found = codebooks(defense, image, count=5, batch=2)
    expected = defense.codebook(image.repeat(5, 1, 1, 1), streams=torch.arange(5))
    assert torch.equal(found, expected)
    assert sorted_codebooks(found).shape == (5, 48)


@pytest.mark.parametrize(
    ("defense", "words", "proved"),
    [
        (PRD(codes=4), "the labels of the patches are the image", True),
        (RandDisc(codes=4), "the labels of the patches are the image", True),
        (SWRD(size=2, codes=4), "infinite", False),
        (SWRD(size=2, codes=4, weights_from="noisy"), "only `proved` is a bound", True),
        (SWRD(size=2, codes=4, beta=0.0), "at least the second term", True),
        (PRD(codes=4, tau=0.0), "not computed", False),
    ],
)
def test_what_the_second_term_means_depends_on_the_defense(
    image: Tensor, moved: Tensor, defense: Defense, words: str, proved: bool
) -> None:
    (found,) = measure(defense, image, moved, settings=SETTINGS)
    assert words in found.second_is
    assert (found.proved.second is not None) == proved
    assert (found.diagnostic.second is None) == (defense.tau == 0)
    assert found.proved.first > 0


def test_two_centres_need_no_samples(image: Tensor, moved: Tensor) -> None:
    second = measure(PRD(codes=2), image, moved, settings=SETTINGS)[0].diagnostic.second
    assert second.exact
    assert math.isfinite(second.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codebooks": 1}, "codebooks=1"),
        ({"label_codebooks": 151}, "label_codebooks=151 should be from 2 to 150"),
        ({"label_codebooks": 1}, "label_codebooks=1 should be from 2 to 150"),
        ({"lines": 1}, "lines=1"),
        ({"samples": 0}, "samples=0"),
        ({"starts": "none"}, "starts='none'"),
        ({"batch": 0}, "batch=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_settings_that_make_no_sense_are_named(changes: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        replace(SETTINGS, **changes)


def test_one_image_at_a_time(image: Tensor) -> None:
    with pytest.raises(InvalidInputError, match=r"\(1, q, h, w\) and \(b, q, h, w\)"):
        measure(PRD(codes=4), image.repeat(2, 1, 1, 1), image, settings=SETTINGS)
    with pytest.raises(InvalidInputError, match=r"\(1, 3, 8, 8\) and \(1, 3, 8, 4\)"):
        measure(PRD(codes=4), image, image[..., :4], settings=SETTINGS)


@pytest.mark.slow
def test_the_script_runs_on_what_comes_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("kl_diagnostic", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out = tmp_path / "kl.json"
    small = "--codebooks 60 --label-codebooks 2 --lines 4 --samples 100 --components 2 --steps 2 --device cpu"
    defenses = ["--defense", "prd:size=2,codes=3", "swrd:size=3,codes=4"]
    monkeypatch.setattr("sys.argv", ["kl_diagnostic.py", *small.split(), *defenses, "--out", str(out)])
    module.main()
    record = json.loads(out.read_text())
    assert [(row["text"], row["eps"]) for row in record["rows"]] == [(d, 8 / 255) for d in defenses[1:]]
    assert record["classifier"]["name"] == "small-cifar10"
    assert str(tmp_path) not in out.read_text()
    printed = capsys.readouterr().out
    assert "floor" in printed
    assert "prd:size=2,codes=3" in printed
