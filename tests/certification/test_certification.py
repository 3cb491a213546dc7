"""Certification: records that are functions of the study, figures that follow from the records."""

import importlib.util
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import certificate_plot
from vqshield.certificates import binomial_statement, clopper_pearson, radius, union_statement
from vqshield.certification.records import CertificateRecord, DrawsRecord, VoteRecord
from vqshield.certification.study import Certification, certify
from vqshield.certification.summary import CertificationSummary
from vqshield.classifiers import small_cifar10
from vqshield.classifiers.folding import fast_forward
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.data import sample
from vqshield.defended import Defended, defend
from vqshield.models.draws import outputs
from vqshield.runs.executors import LocalExecutor
from vqshield.runs.study import Recorded
from vqshield.runs.target import Target

NOISY, SIGMA_EFF = "prd:codes=4,sigma=0.15,tau=0.2", 0.12
BY_TARGET = Certification(
    defense=NOISY, attack="pgd:steps=2,surrogate=none", eps=(0.05, 0.2), draws=30, n0=20, n=60, alpha=0.01,
    delta=0.05, batch=64,
)  # fmt: skip


@pytest.fixture(scope="module")
def target() -> Target:
    """Seven images of three classes, and a network of one layer."""
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (7, 3, 8, 8), dtype=torch.uint8, generator=source).float() / 255
    layer = nn.Linear(3 * 8 * 8, 3, bias=False)
    weight = torch.randn(layer.weight.shape, generator=source)
    layer.weight.data = weight - weight.mean(1, keepdim=True)  # no class for brightness alone
    model = nn.Sequential(nn.Flatten(), layer)
    labels = model(images).argmax(1)
    labels[4] = (labels[4] + 1) % 3  # one that is wrong already
    return Target.in_memory(model, images, labels)


@pytest.fixture(scope="module")
def study(target: Target) -> Certification:
    return replace(BY_TARGET, target=target)


def run(study: Certification) -> list[CertificateRecord]:
    return list(study.in_memory().records)


@pytest.fixture(scope="module")
def finished(study: Certification, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list]:
    folder = tmp_path_factory.mktemp("certification")
    LocalExecutor().run(study, folder)
    return folder, list(Certification.read(folder).records)


def test_a_record_for_every_image_and_certificate(finished, target: Target) -> None:
    _, records = finished
    chunks, budgets = ((0, 1, 2, 3), (4, 5, 6)), (0, 0.05, 0.2)
    assert [(record.certificate, getattr(record, "eps", None), record.image) for record in records] == [
        *[("vote", None, image) for image in range(7)],
        *[("draws", eps, image) for chunk in chunks for eps in budgets for image in chunk],
    ]
    assert all(record.label == int(target.images.labels[record.image]) for record in records)


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


def test_draws_are_fresh_and_as_many_as_they_should_be(study: Certification, target: Target) -> None:
    """The share of right answers agrees with other draws of the same defense."""
    model, (images, labels) = Defended(target.model, study.create(seed=99)), target.part(range(1))
    share = float((outputs(model, images, runs=2000).argmax(-1) == labels).double().mean())
    many = replace(study, target=replace(target, limit=1), certificate="vote", n0=1, n=2000)
    (vote,) = run(many)
    spread = math.sqrt(2 * share * (1 - share) / 2000) + 1e-3
    assert abs(vote.right / 2000 - share) < 5 * spread


@pytest.mark.parametrize("after", [1, 5, 9, 14])
def test_stopped_anywhere_it_ends_in_the_same_bytes(
    finished, study: Certification, tmp_path: Path, after: int
) -> None:
    calls = 0

    def stop(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalExecutor().run(study, tmp_path, progress=stop)
    LocalExecutor().run(study, tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == (finished[0] / "records.jsonl").read_bytes()


def test_progress_never_goes_back_and_ends_at_the_work(study: Certification) -> None:
    seen: list[tuple[str, int, int]] = []
    study.in_memory(lambda *said: seen.append(said))
    done = [each for _, each, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == ("error bounds at eps 51/255", study.work, study.work)
    assert study.work == 7 * (80 + 3 * 30)


def test_one_certificate_alone_gives_the_same_records(finished, study: Certification) -> None:
    for certificate in ("vote", "draws"):
        alone = run(replace(study, certificate=certificate))
        assert alone == [record for record in finished[1] if record.certificate == certificate]


def test_seeds_of_selection_estimation_and_attack_differ(study: Certification) -> None:
    purposes = ("selection", "estimation", "attack", "attacked draws", "draws")
    seeds = [study.seed_for(cell, purpose) for cell in study.cells for purpose in purposes]
    assert len(set(seeds)) == len(seeds)


def test_another_study_is_refused(finished, study: Certification) -> None:
    with pytest.raises(InvalidInputError, match=r"alpha=0.01, this run has alpha=0.02"):
        LocalExecutor().run(replace(study, alpha=0.02), finished[0])


def test_the_manifest_says_what_was_certified(finished) -> None:
    manifest = json.loads((finished[0] / "manifest.json").read_text())
    assert manifest["coverage"] == {"sigma_eff": pytest.approx(SIGMA_EFF), "copies": 1.0}
    assert manifest["defense"]["settings"]["noise"] == "patch"
    assert [source["eps"] for source in manifest["sources"]] == [0, 0.05, 0.2]
    assert manifest["sources"][1]["attack"]["attack"]["steps"] == 2
    assert manifest["values"] == 192


def test_the_summary_is_the_records(finished) -> None:
    folder, records = finished
    summary = CertificationSummary.of(Certification.read(folder), radii=[0.0, 0.05, 5.0])
    votes = [record for record in records if isinstance(record, VoteRecord)]
    assert summary.complete is True
    vote = summary.vote
    for point in vote.curve:
        certified = sum(each.answer == each.label and each.radius > point.radius for each in votes)
        assert point.vote == pytest.approx(certified / 7)
        assert point.linf == pytest.approx(point.radius / math.sqrt(192))
        assert point.vote_statement <= point.vote
        assert point.draw_statement <= point.draw
    assert vote.curve[0].draw == pytest.approx(sum(each.p_y for each in votes) / 7)
    assert vote.curve[2].vote == 0
    assert vote.abstained == sum(each.abstain for each in votes) / 7
    for row in summary.draws:
        part = [each for each in records if isinstance(each, DrawsRecord) and each.eps == row.eps]
        assert row.accuracy == pytest.approx(1 - sum(each.errors for each in part) / 210)
        found = row.bounds["clopper_pearson"]
        upper = torch.tensor([each.bounds["clopper_pearson"] for each in part], dtype=torch.float64)
        errors = torch.tensor([each.errors for each in part])
        stricter = clopper_pearson(errors=errors, draws=30, delta=0.05 / 7)
        assert found.certified_accuracy == pytest.approx(float((1 - upper).mean()))
        assert found.union == pytest.approx(union_statement(upper=stricter, delta=0.05).certified_accuracy)
        expected = binomial_statement(upper=upper, delta=0.05, eta=0.05)
        assert (found.binomial, found.binomial_holding) == (
            expected.certified_accuracy, expected.holding
        )  # fmt: skip


def test_radii_are_round_numbers_up_to_the_largest(finished) -> None:
    vote = CertificationSummary.of(Certification.read(finished[0])).vote
    found = [point.radius for point in vote.curve]
    assert found[0] == 0
    assert 5 <= len(found) <= 11
    assert max(found) < vote.largest_radius <= max(found) + found[1] + 1e-9


def test_what_there_is_of_an_unfinished_run(finished) -> None:
    whole = Certification.read(finished[0])
    summary = CertificationSummary.of(replace(whole, records=whole.records[:5]))
    assert summary.complete is False
    assert summary.vote.images == 5
    assert summary.draws == ()
    nothing = CertificationSummary.of(Recorded(manifest=whole.manifest, records=[], seconds={}))
    assert (nothing.vote, nothing.draws) == (None, ())


def test_records_of_another_kind_are_named(finished, tmp_path: Path) -> None:
    manifest = json.loads((finished[0] / "manifest.json").read_text())
    del manifest["certificate"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        InvalidInputError, match="no field 'certificate': it belongs to records of another kind"
    ):
        Certification.read(tmp_path)
    with pytest.raises(KeyError):
        Certification.parse(b'{"certificate": "hope"}\n')


def test_a_line_that_was_changed_is_named(finished, study: Certification, tmp_path: Path) -> None:
    for name in ("manifest.json", "records.jsonl"):
        (tmp_path / name).write_bytes((finished[0] / name).read_bytes())
    lines = (tmp_path / "records.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "records.jsonl").write_bytes(b"".join([lines[0], b'{"certificate": "hope"}\n', *lines[2:]]))
    with pytest.raises(FileFormatError, match="line 2 is not a record"):
        LocalExecutor().run(study, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"certificate": "hope"},
            "certificate='hope' is unknown; choose one of all, draws, seq",
        ),
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
        (
            {"defense": "none"},
            "leaves nothing to certify; give a defense, one of randdisc, prd, swrd, gaussian",
        ),
        ({"defense": "gaussian"}, "gaussian takes sigma"),
        ({"defense": "gaussian:sigma=0"}, "no certificate holds for sigma=0"),
        ({"defense": "gaussian:sigma=0.1", "attack": "pgd:steps=2"}, "goes through a quantizer"),
        ({"precision": "fp8"}, "precision='fp8' is unknown; choose one of bf16, float32"),
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
        replace(BY_TARGET, **change)


def test_error_bounds_need_no_coverage(target: Target) -> None:
    assert Certification(target=target, defense="swrd", certificate="draws").manifest.coverage is None


def test_what_would_help_does() -> None:
    for text in ("swrd:weights_from=noisy", "swrd:beta=0", "swrd:noise=image"):
        assert Certification(defense=text).coverage.sigma_eff > 0
    with pytest.raises(InvalidInputError) as refused:  # nothing helps where there is no noise at all
        assert Certification(defense="swrd:tau=0", certificate="draws").coverage
    assert "noise='image'" not in str(refused.value)


def test_a_defense_too_large_for_the_images_is_refused_before_any_work(
    study: Certification, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match="size=9 should be at most"):
        LocalExecutor().run(replace(study, defense="prd:size=9"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("certificate", ["vote", "all"])
def test_plain_gaussian_smoothing_is_certified_alike(
    study: Certification, tmp_path: Path, certificate: str
) -> None:
    LocalExecutor().run(replace(study, defense="gaussian:sigma=0.12", certificate=certificate), tmp_path)
    found = Certification.read(tmp_path)
    assert len(found.records) == (7 if certificate == "vote" else 28)
    votes = [record for record in found.records if isinstance(record, VoteRecord)]
    for vote in votes:
        expected = radius(counts_top=vote.top, draws=60, alpha=0.01, sigma_eff=0.12)
        assert vote.radius == pytest.approx(expected)
    assert sum(vote.answer == vote.label for vote in votes) >= 3
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["coverage"] == {"sigma_eff": 0.12, "copies": 1.0}
    assert manifest["defense"] == {"name": "gaussian:sigma=0.12", "settings": {"sigma": 0.12}}
    assert CertificationSummary.of(found).complete is True


def test_the_noise_alone_decides_what_gaussian_smoothing_answers(
    study: Certification, target: Target
) -> None:
    """A linear layer: the margin is Gaussian, and the share of right answers of two classes is known."""
    layer = nn.Linear(192, 2, bias=False)
    layer.weight.data[0] = 0
    layer.weight.data[1] = torch.linspace(-1, 1, 192)
    model, images, draws = nn.Sequential(nn.Flatten(), layer), target.images.floats(), 2000
    two = Target.in_memory(model, images, torch.ones(7, dtype=torch.int64))
    with torch.no_grad():
        margins = model(images)[:, 1].double() / (0.3 * layer.weight[1].norm().double())
    votes = run(replace(study, target=two, defense="gaussian:sigma=0.3", certificate="vote", n=draws))
    for vote, expected in zip(votes, torch.special.ndtr(margins), strict=True):
        assert abs(vote.right / draws - float(expected)) < 5 * 0.5 / math.sqrt(draws)


def test_bf16_is_another_classifier_and_says_so(finished, study: Certification, target: Target) -> None:
    halved = fast_forward(target.model, device=target.place, precision="bf16")
    images = target.images.floats()
    assert halved(images).dtype == torch.float32
    torch.testing.assert_close(halved(images), target.model(images).detach(), rtol=0.05, atol=0.1)
    votes = [record for record in finished[1] if isinstance(record, VoteRecord)]
    found = replace(study, precision="bf16", certificate="vote").in_memory()
    assert all(abs(one.top - other.top) <= 10 for one, other in zip(found.records, votes, strict=True))
    assert found.manifest.precision == "bf16"


def test_a_cell_is_small_enough_to_be_attacked_and_to_be_lost(study: Certification) -> None:
    def sizes(batch: int, draws: int) -> list[int]:
        manifest = replace(study, certificate="draws", eps=(), batch=batch, draws=draws).manifest
        many = replace(manifest, data=replace(manifest.data, images=1000))
        return [len(cell.images) for cell in Certification.cells_of(many)]

    assert sizes(8000, 1000)[0] == 320  # forty batches of draws
    assert sizes(8000, 10)[0] == 500  # a sixteenth of the batch
    assert set(sizes(10, 10_000)) == {1}
    assert sum(sizes(500, 1000)) == 1000


ASKED = {
    "attack": "pgd:steps=1,surrogate=none", "eps": 0.1, "bound_samples": 4, "selection": 4, "samples": 16,
    "radii": [0.0, 0.01], "batch": 64, "limit": 3,
}  # fmt: skip


def found_by(summary: CertificationSummary) -> tuple:
    return summary.vote, summary.draws


@pytest.fixture(scope="module")
def by_names() -> CertificationSummary:
    return certify(defense=NOISY, **ASKED, device="cpu")


def test_one_call_gives_votes_and_error_bounds(by_names: CertificationSummary) -> None:
    assert by_names.complete
    assert (by_names.vote.images, [point.radius for point in by_names.vote.curve]) == (3, [0.0, 0.01])
    assert [(row.eps, row.images, row.draws) for row in by_names.draws] == [(0.0, 3, 4), (0.1, 3, 4)]
    assert by_names.manifest.defense.name == NOISY


def test_names_tensors_and_defended_models_certify_alike(by_names: CertificationSummary) -> None:
    data, model = sample(4), small_cifar10()
    images, labels = data.floats(), data.labels
    for classifier, given in {"small-cifar10": (images, labels), model: ("cifar10-sample",)}.items():
        found = certify(classifier, *given, defense=NOISY, **{**ASKED, "eps": (0.1,)})
        assert found_by(found) == found_by(by_names)
    shielded = defend(model, "prd", codes=4, sigma=0.15, tau=0.2, seed=5)
    assert found_by(certify(shielded, images, labels, **ASKED)) == found_by(by_names), (
        "other draws than its own"
    )
    other = certify(model, images, labels, **ASKED, defense="gaussian:sigma=0.1")
    assert other.vote.sigma_eff == 0.1, "what is asked for"


def test_with_a_folder_it_gives_the_same_and_continues(
    by_names: CertificationSummary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    class Watched(LocalExecutor):
        def manifest(self, study):
            used.append(type(study).__name__)
            return super().manifest(study)

    found = certify(defense=NOISY, **ASKED, device="cpu", out=tmp_path, executor=Watched())
    assert found_by(found) == found_by(by_names)
    assert used == ["Certification"]
    monkeypatch.setattr(Certification, "measure", lambda *_: pytest.fail("measures again"))
    assert certify(defense=NOISY, **ASKED, device="cpu", out=str(tmp_path)) == found


def script():
    path = Path(__file__).resolve().parents[2] / "paper" / "research" / "certified_radius.py"
    spec = importlib.util.spec_from_file_location("certified_radius", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["certified_radius"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_configuration_of_the_comparison_is_certified_at_its_level() -> None:
    radii = script()
    levels = {float(f"{level:.4g}") for level in radii.LEVELS}
    texts = radii.configurations()
    assert len(set(texts)) == len(texts)
    assert 0 < len(levels) * (1 + len(radii.QUANTIZERS) * len(radii.NOISES)) - len(texts) <= 2, "too noisy"
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
    panel = [
        SimpleNamespace(**each, tuned=bool(each["tuned_behind"])) for each in rows if each["level"] == 0.1
    ]
    assert [each.mean_radius for each in certificate_plot.lines(panel)] == [9, 3, 2, 99, 1]
