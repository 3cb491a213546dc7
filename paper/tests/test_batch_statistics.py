"""Evaluations by each batch's own statistics: as in training mode, recorded, and kept apart from others."""

import copy
import json

import pytest
import torch
from typer.testing import CliRunner

from vqshield.attacks import FastGradients
from vqshield.classifiers import bundled_as_trained, small_cifar10
from vqshield.cli.application import app
from vqshield.core.errors import InvalidInputError
from vqshield.data import sample
from vqshield.runs.target import Target
from vqshield_paper.batch_statistics import BATCH, BatchEvaluation, BatchStatistics, check_batch_norm
from vqshield_paper.shared_images import SharedEvaluation

IMAGES = sample(12).floats()


def test_each_batch_is_normalized_by_its_own_statistics_as_in_training_mode():
    network = bundled_as_trained("small-cifar10")
    state = copy.deepcopy(network.state_dict())
    points = IMAGES.clone().requires_grad_()
    logits = BatchStatistics(network, 5)(points)  # 12 images are three batches of 4
    training = copy.deepcopy(network).train()
    again = IMAGES.clone().requires_grad_()
    expected = torch.cat([training(part) for part in again.split(4)])
    torch.testing.assert_close(logits, expected)
    found, wanted = (
        torch.autograd.grad(each.logsumexp(1).sum(), at)[0]
        for each, at in ((logits, points), (expected, again))
    )
    torch.testing.assert_close(found, wanted)
    assert all(torch.equal(state[key], held) for key, held in network.state_dict().items())
    assert not torch.allclose(logits, network(IMAGES), atol=0.1)


def test_a_single_image_is_classified_by_the_running_statistics():
    network = bundled_as_trained("small-cifar10")
    assert torch.equal(BatchStatistics(network, 5)(IMAGES[:1]), network(IMAGES[:1]))


def test_fast_gradients_of_batch_statistics_are_of_the_batch():
    model = BatchStatistics(bundled_as_trained("small-cifar10"), 12)
    torch.testing.assert_close(
        FastGradients(model, "bf16").eval()(IMAGES), model(IMAGES), atol=1e-4, rtol=1e-4
    )


def study(batch_norm, **changes):
    kind = BatchEvaluation if batch_norm.startswith(BATCH) else SharedEvaluation
    return kind(
        target=Target(limit=12), defenses=("prd:codes=5",), runs=2, batch=6, batch_norm=batch_norm,
        attacks=("pgd:steps=1,surrogate=none", "pgd:steps=1"), **changes,
    )  # fmt: skip


def test_every_mode_is_recorded_and_gives_other_answers():
    modes = ("running", "batch:size=6", "calibrated:data=cifar10-sample,split=test,method=paired,images=64")
    answers = {}
    for text in modes:
        found = study(text).in_memory()
        assert found.manifest.batch_norm == (None if text == "running" else text)
        answers[text] = [each.predictions for each in found.records if each.defense != "none"]
        assert study(text).in_memory().records == found.records
    assert len({str(each) for each in answers.values()}) == 3


def test_attacks_use_the_batch_or_the_checkpoint_and_are_kept_apart(tmp_path):
    def distance(text):
        measured = study(text, shared=tmp_path)
        images, labels = measured.target.part(range(6))
        cell = next(each for each in measured.cells if each.attack == "pgd:steps=1,surrogate=none")
        return measured._attacked(cell, images, labels)

    running, same, other = map(distance, ("running", "batch:size=6", "batch:size=6,attack=running"))
    assert torch.equal(running, other)
    assert not torch.equal(running, same)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("text", ["batch:data_dir=x", "own", "batch:size=1", "batch:attack=other"])
def test_nonsense_is_refused(text):
    with pytest.raises(InvalidInputError):
        check_batch_norm(text)
    with pytest.raises(InvalidInputError):
        study(text)


def test_folded_norms_are_refused():
    with pytest.raises(InvalidInputError, match="folded"):
        BatchStatistics(small_cifar10(), 4)


def test_reproduce_records_the_mode_and_refuses_parts_without_one(tmp_path):
    def run(name, *more):
        return CliRunner().invoke(
            app,
            ["reproduce", name, "--batch-norm", "batch:size=4", "--limit", "4", "--samples", "1", "--attack",
             "none", "--out", str(tmp_path), "--data", "cifar10=cifar10-sample", "--only", "cifar10",
             "--device", "cpu", "--json", *more],
        )  # fmt: skip

    assert run("A1", "--dry-run").exit_code == 0
    quick = tmp_path / "quick.toml"
    quick.write_text(
        'id = "A1"\ntitle = "one"\nshows = "table"\n[[parts]]\nkind = "accuracy"\nname = "cifar10"\n'
        'title = "one"\ndata = "cifar10"\neps = "8/255"\ncount = 4\ndefenses = ["prd:codes=4"]\n'
        'attacks = { pgd = "pgd:steps=1,surrogate=none" }\n'
    )
    done = run(str(quick))
    assert done.exit_code == 0, done.output
    made = json.loads((tmp_path / "A1" / "experiment.json").read_text())["parts"][0]["made"]
    assert made[0]["batch_norm"] == "batch:size=4"
    manifest = json.loads((tmp_path / "A1" / "cifar10" / "protocol" / "manifest.json").read_text())
    assert (manifest["batch_norm"], manifest["batch"]) == ("batch:size=4", 4)
    refused = run("F7")
    assert refused.exit_code == 2
    assert "measure accuracy" in refused.stderr
