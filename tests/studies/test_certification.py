"""Certification: records that are functions of the specification, figures that follow from the records."""

import importlib.util
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import certificate_plot
import pytest
import torch
from torch import nn
from vqshield.studies.certification_forward import fastest_form, forward_of
from vqshield.studies.certification_records import (
    CertificateRecord,
    DrawsRecord,
    VoteRecord,
    parse_record,
)
from vqshield.studies.certification_settings import CertificationSettings, cells, coverage_of
from vqshield.studies.certification_summary import (
    summarise_certification,
    summarise_certification_folder,
)

from vqshield.certificates import binomial_statement, clopper_pearson, evidence, radius, union_statement
from vqshield.classifiers import Normalised, build, small_cifar10
from vqshield.data import ImageSet, sample
from vqshield.defended import Defended
from vqshield.draws import outputs
from vqshield.errors import FileFormatError, InvalidInputError
from vqshield.runs.target import Subject
from vqshield.studies.certification import Certification, evidence_of_blocks

NOISY, SIGMA_EFF = "prd:codes=4,sigma=0.15,tau=0.2", 0.12
SETTINGS = CertificationSettings(
    defense=NOISY, attack="pgd:steps=2,surrogate=none", eps=(0.05, 0.2), draws=30, n0=20, n=60, alpha=0.01,
    delta=0.05, batch=64,
)  # fmt: skip


@pytest.fixture(scope="module")
def subject() -> Subject:
    """Seven images of three classes, and a network of one layer."""
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (7, 3, 8, 8), dtype=torch.uint8, generator=source)
    layer = nn.Linear(3 * 8 * 8, 3, bias=False)
    weight = torch.randn(layer.weight.shape, generator=source)
    layer.weight.data = weight - weight.mean(1, keepdim=True)  # no class for brightness alone
    classifier = nn.Sequential(nn.Flatten(), layer)
    labels = classifier(images.float() / 255).argmax(1)
    labels[4] = (labels[4] + 1) % 3  # one that is wrong already
    data = ImageSet("seven", images, labels, ("a", "b", "c"))
    return Subject(data=data, classifier=classifier, name="layer", sha256="0", device=torch.device("cpu"))


def run(settings: CertificationSettings, subject: Subject, folder: Path) -> list[CertificateRecord]:
    certification = Certification(settings, subject, folder)
    certification.run()
    return certification.records.read()


@pytest.fixture(scope="module")
def finished(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list]:
    folder = tmp_path_factory.mktemp("certification")
    return folder, run(SETTINGS, subject, folder)


def test_a_record_for_every_image_and_certificate(finished, subject: Subject) -> None:
    _, records = finished
    chunks, budgets = ((0, 1, 2, 3), (4, 5, 6)), (0, 0.05, 0.2)
    assert [(record.certificate, getattr(record, "eps", None), record.image) for record in records] == [
        *[("vote", None, image) for image in range(7)],
        *[("draws", eps, image) for chunk in chunks for eps in budgets for image in chunk],
    ]
    assert all(record.label == int(subject.data.labels[record.image]) for record in records)


def test_a_vote_is_what_its_counts_say(finished) -> None:
    votes = [record for record in finished[1] if isinstance(record, VoteRecord)]
    for vote in votes:
        expected = radius(counts_top=vote.top, draws=60, alpha=0.01, sigma_eff=SIGMA_EFF)
        assert vote.radius == pytest.approx(expected)
        assert vote.abstain == (vote.radius == 0) == (vote.answer == -1)
        assert vote.answer in (-1, vote.selected)
        assert vote.right == vote.top if vote.selected == vote.label else vote.right <= 60 - vote.top
        assert vote.p_y == pytest.approx(1 - clopper_pearson(errors=60 - vote.right, draws=60, delta=0.01))
    assert {vote.abstain for vote in votes} == {True, False}, "the case is meant to have both"


def test_error_bounds_are_those_of_the_draws(finished) -> None:
    rows = [record for record in finished[1] if isinstance(record, DrawsRecord)]
    for row in rows:
        expected = clopper_pearson(errors=row.errors, draws=30, delta=0.05)
        assert row.bounds["clopper_pearson"] == pytest.approx(expected)
        assert row.bounds["clopper_pearson"] <= row.bounds["truncated_markov"] <= row.bounds["proposition1"]
        assert row.distance <= row.eps + 1e-6
        assert (row.distance > 0) == (row.eps > 0)
        assert row.margin <= 0 or row.image != 4


def test_draws_are_fresh_and_as_many_as_they_should_be(subject: Subject) -> None:
    """The share of right answers agrees with other draws of the same defense."""
    images = subject.data.floats()
    model = Defended(subject.classifier, SETTINGS.create(seed=99))
    share = (outputs(model, images, runs=2000).argmax(-1) == subject.data.labels).double().mean(0)
    specification = {**SETTINGS.described(), "data": {"images": 7}}
    (cell,) = {
        each.images: each for each in cells(specification) if each.eps is None and 0 in each.images
    }.values()
    counts = Certification(SETTINGS, subject, Path("unused"))._counts(cell, "selection", images[:1], 2000)
    assert int(counts.sum()) == 2000
    spread = math.sqrt(2 * float(share[0] * (1 - share[0])) / 2000) + 1e-3
    assert abs(float(counts[0, subject.data.labels[0]]) / 2000 - float(share[0])) < 5 * spread


@pytest.mark.parametrize("after", [1, 5, 9, 14])
def test_stopped_anywhere_it_ends_in_the_same_bytes(
    finished, subject: Subject, tmp_path: Path, after: int
) -> None:
    calls = 0

    def stop(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Certification(SETTINGS, subject, tmp_path, stop).run()
    run(SETTINGS, subject, tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == (finished[0] / "records.jsonl").read_bytes()


def test_progress_never_goes_back_and_ends_at_the_work(subject: Subject, tmp_path: Path) -> None:
    seen: list[int] = []
    certification = Certification(SETTINGS, subject, tmp_path, lambda _, done: seen.append(done))
    certification.run()
    assert seen == sorted(seen)
    assert seen[-1] == certification.work == 7 * (80 + 3 * 30)


def test_one_certificate_alone_gives_the_same_records(finished, subject: Subject, tmp_path: Path) -> None:
    for certificate in ("vote", "draws"):
        alone = run(replace(SETTINGS, certificate=certificate), subject, tmp_path / certificate)
        assert alone == [record for record in finished[1] if record.certificate == certificate]


def test_seeds_of_selection_estimation_and_attack_differ(subject: Subject, tmp_path: Path) -> None:
    certification = Certification(SETTINGS, subject, tmp_path)
    purposes = ("selection", "estimation", "attack", "attacked draws", "draws")
    seeds = [certification._seed(cell, purpose) for cell in certification.cells for purpose in purposes]
    assert len(set(seeds)) == len(seeds)


def test_another_specification_is_refused(finished, subject: Subject) -> None:
    with pytest.raises(InvalidInputError, match=r"alpha=0.01, this run has alpha=0.02"):
        run(replace(SETTINGS, alpha=0.02), subject, finished[0])


def test_the_manifest_says_what_was_certified(finished) -> None:
    manifest = json.loads((finished[0] / "manifest.json").read_text())
    assert manifest["coverage"] == {"sigma_eff": pytest.approx(SIGMA_EFF), "copies": 1.0}
    assert manifest["defense"]["settings"]["noise"] == "patch"
    assert [source["eps"] for source in manifest["sources"]] == [0, 0.05, 0.2]
    assert manifest["sources"][1]["attack"]["attack"]["steps"] == 2
    assert manifest["values"] == 192


def test_the_summary_is_the_records(finished) -> None:
    folder, records = finished
    summary = summarise_certification_folder(folder, radii=[0.0, 0.05, 5.0])
    votes = [record for record in records if isinstance(record, VoteRecord)]
    assert summary["complete"] is True
    vote = summary["vote"]
    for point in vote["curve"]:
        certified = sum(each.answer == each.label and each.radius > point["radius"] for each in votes)
        assert point["vote"] == pytest.approx(certified / 7)
        assert point["linf"] == pytest.approx(point["radius"] / math.sqrt(192))
        assert point["vote_statement"] <= point["vote"]
        assert point["draw_statement"] <= point["draw"]
    assert vote["curve"][0]["draw"] == pytest.approx(sum(each.p_y for each in votes) / 7)
    assert vote["curve"][2]["vote"] == 0
    assert vote["abstained"] == sum(each.abstain for each in votes) / 7
    for row in summary["draws"]:
        part = [each for each in records if isinstance(each, DrawsRecord) and each.eps == row["eps"]]
        assert row["accuracy"] == pytest.approx(1 - sum(each.errors for each in part) / 210)
        found = row["bounds"]["clopper_pearson"]
        upper = torch.tensor([each.bounds["clopper_pearson"] for each in part], dtype=torch.float64)
        errors = torch.tensor([each.errors for each in part])
        stricter = clopper_pearson(errors=errors, draws=30, delta=0.05 / 7)
        assert found["certified_accuracy"] == pytest.approx(float((1 - upper).mean()))
        assert found["union"] == pytest.approx(union_statement(upper=stricter, delta=0.05).certified_accuracy)
        expected = binomial_statement(upper=upper, delta=0.05, eta=0.05)
        assert (found["binomial"], found["binomial_holding"]) == (
            expected.certified_accuracy, expected.holding
        )  # fmt: skip


def test_radii_are_round_numbers_up_to_the_largest(finished) -> None:
    vote = summarise_certification_folder(finished[0])["vote"]
    found = [point["radius"] for point in vote["curve"]]
    assert found[0] == 0
    assert 5 <= len(found) <= 11
    assert max(found) < vote["largest_radius"] <= max(found) + found[1] + 1e-9


def test_what_there_is_of_an_unfinished_run(finished) -> None:
    folder, records = finished
    manifest = json.loads((folder / "manifest.json").read_text())
    summary = summarise_certification(manifest, records[:5])
    assert summary["complete"] is False
    assert summary["vote"]["images"] == 5
    assert summary["draws"] == []
    nothing = summarise_certification(manifest, [])
    assert (nothing["vote"], nothing["draws"]) == (None, [])


def test_records_of_another_kind_are_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"attacks": []}')
    with pytest.raises(
        InvalidInputError, match="no field 'certificate': it belongs to records of another kind"
    ):
        summarise_certification_folder(tmp_path)
    with pytest.raises(KeyError):
        parse_record(b'{"certificate": "hope"}\n')


def test_a_line_that_was_changed_is_named(finished, subject: Subject, tmp_path: Path) -> None:
    for name in ("manifest.json", "records.jsonl"):
        (tmp_path / name).write_bytes((finished[0] / name).read_bytes())
    lines = (tmp_path / "records.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "records.jsonl").write_bytes(b"".join([lines[0], b'{"certificate": "hope"}\n', *lines[2:]]))
    with pytest.raises(FileFormatError, match="line 2 is no record"):
        run(SETTINGS, subject, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"certificate": "hope"}, "certificate='hope' is unknown; choose one of all, draws, vote"),
        ({"n": 0}, "n=0 should be >= 1"),
        ({"n0": 0}, "n0=0 should be >= 1"),
        ({"draws": 0}, "draws=0 should be >= 1"),
        ({"batch": 0}, "batch=0 should be >= 1"),
        ({"alpha": 0.0}, "alpha=0.0 should lie strictly between"),
        ({"delta": 1.5}, "delta=1.5 should be from 0 to 1"),
        ({"seed": -1}, "seed=-1"),
        ({"eps": (0.1, 0.1)}, "eps holds 0.1 twice"),
        ({"eps": (0.0,)}, "natural images are certified in any case"),
        ({"eps": (2.0,)}, "eps=2.0 should be from 0 to 1"),
        ({"attack": "adaptive-v1"}, "attack='adaptive-v1' is unknown"),
        ({"defense": "none"}, "leaves nothing to certify; give one of randdisc, prd, swrd, gaussian"),
        ({"defense": "gaussian"}, "gaussian takes sigma"),
        ({"defense": "gaussian:sigma=0"}, "no certificate holds for sigma=0"),
        ({"defense": "gaussian:sigma=0.1", "attack": "pgd:steps=2"}, "goes through a quantizer"),
        ({"precision": "fp8"}, "precision='fp8' is unknown; choose one of bf16, fp32"),
        ({"defense": "prd:seed=3"}, "would fix every draw"),
        ({"defense": "prd:sigma=0"}, "no certificate holds for sigma=0"),
        (
            {"defense": "swrd"},
            "holds for weights_from='clean'.*use weights_from='noisy', or beta=0, or noise='image'",
        ),
    ],
)
def test_settings_that_cannot_work_are_named(change: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        replace(SETTINGS, **change)


def test_error_bounds_need_no_coverage() -> None:
    settings = CertificationSettings(defense="swrd", certificate="draws")
    assert settings.described()["coverage"] is None


def test_what_would_help_does() -> None:
    for spec in ("swrd:weights_from=noisy", "swrd:beta=0", "swrd:noise=image"):
        assert coverage_of(CertificationSettings(defense=spec).create(seed=0)).sigma_eff > 0
    with pytest.raises(InvalidInputError) as refused:  # nothing helps where there is no noise at all
        coverage_of(CertificationSettings(defense="swrd:tau=0", certificate="draws").create(seed=0))
    assert "noise='image'" not in str(refused.value)


def test_a_defense_too_large_for_the_images_is_refused_before_any_work(
    subject: Subject, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match="size=9 should be at most"):
        Certification(replace(SETTINGS, defense="prd:size=9"), subject, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("certificate", ["vote", "all"])
def test_plain_gaussian_smoothing_is_certified_alike(
    subject: Subject, tmp_path: Path, certificate: str
) -> None:
    settings = replace(SETTINGS, defense="gaussian:sigma=0.12", certificate=certificate)
    records = run(settings, subject, tmp_path)
    assert len(records) == (7 if certificate == "vote" else 28)
    votes = [record for record in records if isinstance(record, VoteRecord)]
    for vote in votes:
        expected = radius(counts_top=vote.top, draws=60, alpha=0.01, sigma_eff=0.12)
        assert vote.radius == pytest.approx(expected)
    assert sum(vote.answer == vote.label for vote in votes) >= 3
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["coverage"] == {"sigma_eff": 0.12, "copies": 1.0}
    assert manifest["defense"] == {"name": "gaussian:sigma=0.12", "settings": {"sigma": 0.12}}
    assert summarise_certification_folder(tmp_path)["complete"] is True


def test_the_noise_alone_decides_what_gaussian_smoothing_answers(subject: Subject, tmp_path: Path) -> None:
    """A linear layer: the margin is Gaussian, and the share of right answers of two classes is known."""
    layer = nn.Linear(192, 2, bias=False)
    layer.weight.data[0] = 0
    layer.weight.data[1] = torch.linspace(-1, 1, 192)
    data = ImageSet("seven", subject.data.images, torch.ones(7, dtype=torch.int64), ("a", "b"))
    classifier = nn.Sequential(nn.Flatten(), layer)
    two = replace(subject, data=data, classifier=classifier)
    settings = replace(SETTINGS, defense="gaussian:sigma=0.3", certificate="vote", n=4000)
    with torch.no_grad():
        margins = classifier(data.floats())[:, 1].double() / (0.3 * layer.weight[1].norm().double())
    for record, expected in zip(run(settings, two, tmp_path), torch.special.ndtr(margins), strict=True):
        assert abs(record.right / 4000 - float(expected)) < 5 * 0.5 / math.sqrt(4000)


def test_evidence_of_blocks_is_that_of_the_draws() -> None:
    source = torch.Generator().manual_seed(1)
    reference = torch.randn(5, 3, generator=source).double().mul(2).softmax(-1)
    drawn = torch.randn(11, 5, 3, generator=source).double().softmax(-1)
    labels = torch.tensor([0, 1, 2, 0, 1])
    for size in (1, 4, 11):
        found = evidence_of_blocks(reference, drawn.split(size), labels)
        expected = evidence(reference=reference, drawn=drawn, labels=labels)
        assert found.draws == expected.draws == 11
        for name in ("margin", "mean_l1", "mean_truncated", "variance_truncated", "errors"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
    single = evidence_of_blocks(reference, [drawn[:1]], labels)
    assert torch.equal(single.variance_truncated, torch.zeros(5, dtype=torch.float64))


def test_bf16_is_another_classifier_and_says_so(finished, subject: Subject, tmp_path: Path) -> None:
    halved = forward_of(subject.classifier, device=subject.device, precision="bf16")
    images = subject.data.floats()
    assert halved(images).dtype == torch.float32
    torch.testing.assert_close(halved(images), subject.classifier(images).detach(), rtol=0.05, atol=0.1)
    votes = [record for record in finished[1] if isinstance(record, VoteRecord)]
    found = run(replace(SETTINGS, precision="bf16", certificate="vote"), subject, tmp_path)
    assert all(abs(one.top - other.top) <= 10 for one, other in zip(found, votes, strict=True))
    assert json.loads((tmp_path / "manifest.json").read_text())["precision"] == "bf16"


@pytest.mark.parametrize("kind", ["bundled", "fresh", "user's"])
def test_the_form_for_gpus_is_the_same_function(subject: Subject, kind: str) -> None:
    fresh = Normalised(build("small", classes=10), mean=[0.5] * 3, std=[0.2] * 3).eval()
    classifier, images = {
        "bundled": (small_cifar10(), sample(4).floats()),
        "fresh": (fresh, sample(4).floats()),
        "user's": (subject.classifier, subject.data.floats()),
    }[kind]
    with torch.no_grad():
        torch.testing.assert_close(fastest_form(classifier)(images), classifier(images), rtol=1e-4, atol=1e-4)
    assert fastest_form(classifier) is not classifier


def test_a_cell_is_small_enough_to_be_attacked_and_to_be_lost() -> None:
    def sizes(batch: int, draws: int) -> list[int]:
        settings = replace(SETTINGS, certificate="draws", eps=(), batch=batch, draws=draws)
        return [len(cell.images) for cell in cells({**settings.described(), "data": {"images": 1000}})]

    assert sizes(8000, 1000)[0] == 320  # forty batches of draws
    assert sizes(8000, 10)[0] == 500  # a sixteenth of the batch
    assert set(sizes(10, 10_000)) == {1}
    assert sum(sizes(500, 1000)) == 1000


def script():
    path = Path(__file__).resolve().parents[2] / "research" / "certified_radius.py"
    spec = importlib.util.spec_from_file_location("certified_radius", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["certified_radius"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_configuration_of_the_comparison_is_certified_at_its_level() -> None:
    radii = script()
    levels = {float(f"{level:.4g}") for level in radii.LEVELS}
    texts = radii.configurations()
    assert len(set(texts)) == len(texts) == len(levels) * (1 + len(radii.QUANTIZERS) * len(radii.NOISES))
    assert {radii.Job(weights="", tuned_behind=None, defense=text).level for text in texts} == levels
    for level in levels:
        largest = radius(counts_top=10_000, draws=10_000, alpha=0.001, sigma_eff=level)
        assert max(radii.grid(level)) > largest


def test_a_pilot_chooses_the_best_of_every_level(tmp_path: Path) -> None:
    def row(level: float, noise: str, reach: float, tuned: str | None = None) -> dict:
        defense = f"{noise} {level} {reach}"
        return {
            "level": level, "noise": noise, "mean_radius": reach, "tuned_behind": tuned, "defense": defense
        }  # fmt: skip

    rows = [row(0.1, "image", 2), row(0.1, "gaussian", 9), row(0.2, "gaussian", 0), row(0.1, "shared", 3)]
    rows += [row(0.1, "patch", 1), row(0.2, "patch", 4), row(0.1, "image", 99, "fine-tuned")]
    (tmp_path / "pilot.json").write_text(json.dumps({"rows": rows}))
    assert script().best_of(tmp_path / "pilot.json", 2) == [
        "gaussian 0.1 9", "gaussian 0.2 0", "shared 0.1 3", "patch 0.2 4", "image 0.1 2"
    ]  # fmt: skip
    kept = certificate_plot.lines([each for each in rows if each["level"] == 0.1])
    assert [each["mean_radius"] for each in kept] == [9, 3, 2, 99, 1]
