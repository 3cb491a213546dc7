"""The exact L1 study: counts of all shifts, resumable, and against draws and brute force."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import vqshield as vq
from vqshield.certificates import certify_all_shifts, splitting_radius
from vqshield.certification.l1 import L1Certification
from vqshield.certification.records import L1Record
from vqshield.certification.study import Certification, certify
from vqshield.certification.summary import L1Summary
from vqshield.core.errors import InvalidInputError
from vqshield.defended import Defended
from vqshield.models.draws import outputs
from vqshield.runs.executors import LocalExecutor
from vqshield.runs.target import Target

SPLIT = "splitting:scale=0.06"
SHIFTS = 30


def layer() -> nn.Module:
    source = torch.Generator().manual_seed(0)
    made = nn.Linear(3 * 4 * 4, 3, bias=False)
    weight = torch.randn(made.weight.shape, generator=source)
    made.weight.data = weight - weight.mean(1, keepdim=True)
    return nn.Sequential(nn.Flatten(), made).eval()


@pytest.fixture(scope="module")
def target() -> Target:
    images = torch.randint(0, 256, (6, 3, 4, 4), generator=torch.Generator().manual_seed(1)) / 255
    model = layer()
    labels = model(images).argmax(1)
    labels[2] = (labels[2] + 1) % 3  # one that is wrong already
    return Target.in_memory(model, images, labels)


@pytest.fixture(scope="module")
def study(target: Target) -> L1Certification:
    return L1Certification(target=target, defense=SPLIT, batch=2)  # cells of 2 images


def counts(model: Callable[[Tensor], Tensor], images: Tensor, split: vq.Splitting) -> Tensor:
    found = torch.zeros(len(images), 3, dtype=torch.int64)
    for shift in range(split.levels):
        answers = model(split.shifted(images, torch.full((len(images),), shift))).argmax(1)
        found[torch.arange(len(images)), answers] += 1
    return found


def test_records_are_the_votes_of_all_shifts(study: L1Certification, target: Target) -> None:
    images, labels = target.part(range(6))
    all_counts = counts(target.model, images, vq.Splitting(scale=0.06))
    expected = certify_all_shifts(counts=all_counts)
    records = list(study.in_memory().records)
    assert [record.answer for record in records] == expected.answers.tolist()
    assert [record.steps for record in records] == expected.steps.tolist()
    assert [record.label for record in records] == labels.tolist()
    for record, row in zip(records, all_counts.tolist(), strict=True):
        ordered = sorted(row, reverse=True)
        assert [record.top, record.second] == ordered[:2]
        assert record.right == row[record.label]
    assert len({record.steps for record in records}) > 1
    assert records == list(replace(study, batch=7).in_memory().records), "whatever the batch"


def test_a_stopped_run_continues(study: L1Certification, tmp_path: Path) -> None:
    def stop(doing: str, done: int, total: int) -> None:
        assert total == 6 * SHIFTS
        if done > 3 * SHIFTS:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        LocalExecutor().run(study, tmp_path, progress=stop)
    some = list(L1Certification.read(tmp_path).records)
    assert 0 < len(some) < 6
    assert not L1Summary.of(L1Certification.read(tmp_path)).complete
    LocalExecutor().run(study, tmp_path)
    assert list(L1Certification.read(tmp_path).records) == list(study.in_memory().records)


def test_an_earlier_name_of_float32_is_read(study: L1Certification, tmp_path: Path) -> None:
    LocalExecutor().run(study, tmp_path)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"float32"', '"fp32"'))
    assert L1Certification.read(tmp_path).manifest.precision == "float32"


def test_the_summary_counts_what_the_records_say(study: L1Certification) -> None:
    found = study.in_memory()
    summary = L1Summary.of(found, radii=(0.0, 0.02, 1.0))
    right = [record for record in found.records if record.answer == record.label]
    assert summary.right == len(right) / 6
    assert [point.certified for point in summary.curve] == [
        len(right) / 6, sum(each.steps >= 0.02 * 255 for each in right) / 6, 0.0,
    ]  # fmt: skip
    assert [point.real for point in summary.curve][1] == sum(
        each.steps + 1 > 0.02 * 510 for each in right
    ) / 6
    assert summary.linf.needed == pytest.approx(8 / 255 * 48)
    assert summary.linf.certified == 0
    assert (summary.shifts, summary.scale, summary.complete) == (SHIFTS, SHIFTS / 510, True)
    assert summary.largest_radius == 15 / 255


def test_fresh_draws_agree_with_the_exact_shares(study: L1Certification, target: Target) -> None:
    records = list(study.in_memory().records)
    model = Defended(target.model, vq.Splitting(scale=0.06, seed=5))
    drawn = outputs(model, target.part(range(6))[0], runs=2000, batch=4000).argmax(-1)
    for number, record in enumerate(records):
        share = float((drawn[:, number] == record.answer).double().mean())
        assert share == pytest.approx(record.top / SHIFTS, abs=0.05)
        estimate = splitting_radius(p_top=share, p_second=record.second / SHIFTS, scale=SHIFTS / 510)
        assert estimate == pytest.approx(record.radius, abs=0.006)


def test_random_perturbations_within_the_radius_never_flip_a_vote(target: Target) -> None:
    images, _ = target.part(range(6))
    split, source = vq.Splitting(scale=0.06), torch.Generator().manual_seed(3)
    votes = certify_all_shifts(counts=counts(target.model, images, split))
    weight = target.model[1].weight.detach()
    for trial in range(20):
        moved = (images * 255).round().long().flatten(1)
        for number, (steps, answer) in enumerate(
            zip(votes.steps.tolist(), votes.answers.tolist(), strict=True)
        ):
            # Towards another class where the weights differ most, or anywhere.
            other = (answer + 1 + trial % 2) % 3
            slope = weight[other] - weight[answer]
            order = (
                slope.abs().argsort(descending=True) if trial < 10 else torch.randperm(48, generator=source)
            )
            places = order[torch.randint(1 + trial, (steps,), generator=source)]
            for place in places.tolist():
                step = 1 if float(slope[place]) > 0 else -1
                moved[number, place] = (moved[number, place] + step).clamp(0, 255)
        again = certify_all_shifts(counts=counts(target.model, moved.view_as(images) / 255, split))
        assert torch.equal(again.answers, votes.answers)


def test_a_quantizer_behind_the_splitting_is_part_of_the_classifier(study: L1Certification) -> None:
    behind = replace(study, after="prd:size=2,codes=2,iterations=2")
    records = list(behind.in_memory().records)
    assert records == list(replace(behind, batch=7).in_memory().records), "its draw follows from the image"
    assert records != list(study.in_memory().records)
    assert behind.manifest.after is not None
    with pytest.raises(InvalidInputError, match="seed=3 in after="):
        replace(study, after="prd:seed=3")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"defense": "prd"}, "defense='prd' has no L1 certificate; give a splitting"),
        ({"defense": "splitting"}, "splitting takes scale"),
        ({"after": "gaussian:sigma=0.1"}, "defense='gaussian' is unknown"),
        ({"batch": 0}, "batch=0"),
        ({"precision": "fp8"}, "precision='fp8'"),
    ],
)
def test_settings_that_cannot_work_are_named(study: L1Certification, change: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        replace(study, **change)


def test_images_that_are_not_8_bit_are_refused() -> None:
    images = torch.full((2, 3, 4, 4), 0.2)
    images[1, 0, 0, 0] = 0.1234
    with pytest.raises(InvalidInputError, match=r"image 1 holds 0.1234, which is not a multiple of 1/255"):
        vq.certify_l1(layer(), images, torch.zeros(2, dtype=torch.int64), defense=SPLIT)


def test_a_defended_model_brings_its_own_splitting(target: Target) -> None:
    images, labels = target.part(range(6))
    model = Defended(target.model, vq.Splitting(scale=0.06, pattern=2, seed=1))
    found = vq.certify_l1(model, images, labels)
    assert found.manifest.defense.settings == {"scale": 0.06, "pattern": 2}


def test_impossible_records_are_seen(study: L1Certification) -> None:
    good = next(iter(study.in_memory().records))
    assert L1Certification.problem(study.manifest, good) is None
    for change in ({"steps": 16}, {"top": 31}, {"label": 3}, {"top": 20, "second": 15}, {"steps": -1}):
        assert L1Certification.problem(study.manifest, replace(good, **change)) is not None
    assert L1Record.parse(good.line()) == good


def test_a_sequential_certificate_stops_early_and_certifies_as_much(target: Target) -> None:
    images, labels = target.part(range(6))
    asked = {"defense": "gaussian:sigma=0.1", "selection": 30, "samples": 3000, "alpha": 0.01,
             "radii": (0.02,)}  # fmt: skip
    early = certify(target.model, images, labels, certificate="sequential", **asked)
    whole = certify(target.model, images, labels, certificate="vote", **asked)
    assert early.vote is not None
    assert whole.vote is not None
    assert [point.vote for point in early.vote.curve] == [point.vote for point in whole.vote.curve]
    assert early.vote.saving == pytest.approx(3000 / early.vote.mean_draws)
    assert early.vote.saving > 1.5
    assert early.vote.accuracy == pytest.approx(whole.vote.accuracy, abs=0.05)
    assert whole.vote.saving is None
    assert early.manifest.wanted == (0.02,)


def test_a_sequential_record_keeps_the_best_of_its_bounds(target: Target) -> None:
    study = Certification(
        target=target, defense="gaussian:sigma=0.1", certificate="sequential", n0=20, n=800, alpha=0.01
    )
    records = list(study.in_memory().records)
    assert [record.key for record in records] == [("gaussian:sigma=0.1", "sequential", i) for i in range(6)]
    assert all(record.draws in (100, 200, 400, 800) for record in records)
    assert all(study.problem(study.manifest, record) is None for record in records)
    assert study.problem(study.manifest, replace(records[0], draws=300)) is not None
    assert [study.parse(record.line()) for record in records] == records
