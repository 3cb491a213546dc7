"""What a step of training lowers: the right images, within the budget, the same when the step is repeated."""

import pytest
import torch
from test_trainer import settings
from torch.nn import functional as F

from small_runs import TRAINING, two_tones
from vqshield.certification.l1 import certify_l1
from vqshield.classifiers import Normalised, build
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.data import ImageSet
from vqshield.training.objectives import (
    Adversarial,
    Consistent,
    Natural,
    Noisy,
    RunContext,
    SplittingVotes,
    consistency_loss,
    list_objectives,
    objective,
)
from vqshield.training.shielding import TrainingShield
from vqshield.training.trainer import InPrecision, Trainer

CPU = torch.device("cpu")
SHIELD = "swrd:size=2,codes=6,iterations=2"
IMAGES, LABELS = TRAINING.images[:8], TRAINING.labels[:8]


class SeenError(Exception):
    """Carries the images that the loss was asked for."""


@pytest.fixture
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = build("small", classes=2, widths=(4, 6), blocks=(0, 1))
    return Normalised(made, mean=[0.5] * 3, std=[0.25] * 3).train()


def run_context(network, shield=None, seed=0):
    def entropy(images, labels):
        raise SeenError(images)

    behind = None if shield is None else TrainingShield(shield, seed=seed, device=CPU)
    return RunContext(
        network=InPrecision(network, "float32"),
        entropy=entropy,
        shield=behind,
        label_smoothing=0.0,
        seed=seed,
    )


def shown(chosen, context, *, step=3):
    with pytest.raises(SeenError) as caught:
        chosen(context, IMAGES, LABELS, step=step)
    images = caught.value.args[0]
    return images if images.is_floating_point() else images.float() / 255


def test_natural_shows_the_images_behind_the_shield(network):
    assert torch.equal(shown(Natural(), run_context(network)), IMAGES.float() / 255)
    context = run_context(network, SHIELD)
    assert torch.equal(shown(Natural(), context), context.shield.training(IMAGES, step=3))


def test_noise_comes_before_the_shield_and_follows_from_the_step(network):
    bare = run_context(network)
    noisy = shown(Noisy(sigma=0.05), bare)
    change = noisy - IMAGES.float() / 255
    inside = (noisy > 0) & (noisy < 1)
    assert float(change[inside].std()) == pytest.approx(0.05, rel=0.15)
    assert torch.equal(noisy, shown(Noisy(sigma=0.05), bare))
    assert not torch.equal(noisy, shown(Noisy(sigma=0.05), bare, step=4))
    context = run_context(network, SHIELD)
    assert torch.equal(shown(Noisy(sigma=0.05), context), context.shield.training(noisy, step=3))


@pytest.mark.parametrize(
    ("shield", "surrogate"),
    [(None, "none"), (SHIELD, "none"), (SHIELD, "ste"), (SHIELD, "soft:temperature=0.1")],
)
def test_adversarial_images_keep_the_budget_and_raise_the_loss(network, shield, surrogate):
    context = run_context(network, shield)
    chosen = Adversarial(eps=0.1, steps=3, surrogate=surrogate)
    clean = IMAGES.float() / 255
    found = chosen._attacked(context, clean, LABELS, 3)
    assert 0 < float((found - clean).abs().max()) <= 0.1 + 1e-6
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    assert torch.equal(found, chosen._attacked(context, clean, LABELS, 3))
    assert not torch.equal(found, chosen._attacked(context, clean, LABELS, 4))
    assert torch.equal(shown(chosen, context), context.shielded(found, step=3))
    assert network.training
    assert all(parameter.grad is None for parameter in network.parameters())
    with torch.no_grad():
        network.eval()
        losses = [F.cross_entropy(network(context.shielded(each, step=9)), LABELS) for each in (clean, found)]
    assert losses[1] > losses[0]


def test_an_attack_that_leaves_the_shield_out_does_not_depend_on_it(network):
    clean, chosen = IMAGES.float() / 255, Adversarial(eps=0.1, steps=2, surrogate="none")
    with_shield, without = (
        chosen._attacked(run_context(network, shield), clean, LABELS, 0) for shield in (SHIELD, None)
    )
    assert torch.equal(with_shield, without)


def test_trades_is_the_clean_loss_plus_beta_times_the_divergence(network):
    context = run_context(network)
    network.eval()  # batch norms then treat both batches alike
    clean = IMAGES.float() / 255
    values = {}
    for beta in (0.0, 1.0, 3.0):
        loss, hits = Adversarial(loss="trades", eps=0.1, steps=2, beta=beta)(context, IMAGES, LABELS, step=3)
        values[beta] = float(loss.detach())
    natural = network(clean).detach()
    assert values[0.0] == pytest.approx(float(F.cross_entropy(natural, LABELS)), rel=1e-5)
    assert int(hits) == int((natural.argmax(1) == LABELS).sum())
    found = Adversarial(loss="trades", eps=0.1, steps=2)._attacked(context, clean, LABELS, 3)
    reference, moved = natural.softmax(1), network(found).detach().softmax(1)
    apart = float((reference * (reference / moved).log()).sum(1).mean())
    assert apart > 0
    assert values[1.0] - values[0.0] == pytest.approx(apart, rel=1e-3)
    assert values[3.0] - values[0.0] == pytest.approx(3 * apart, rel=1e-3)


@pytest.mark.parametrize("shield", ["splitting:scale=0.87", "gaussian:sigma=0.25"])
def test_consistency_is_its_loss_of_fresh_draws_of_the_same_images(network, shield):
    context = run_context(network, shield)
    network.eval()  # batch norms then treat the draws alike
    chosen = Consistent(draws=3, agreement=5.0, entropy=0.2)
    loss, hits = chosen(context, IMAGES, LABELS, step=3)
    shown = context.shield.training(IMAGES.repeat(3, 1, 1, 1), step=3)
    draws = shown.view(3, *IMAGES.shape)
    assert not torch.equal(draws[0], draws[1])
    logits = torch.stack([network(each) for each in draws])
    expected = consistency_loss(logits, LABELS, agreement=5.0, entropy=0.2)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()))
    assert int(hits) == int((logits[0].argmax(1) == LABELS).sum())
    assert not torch.equal(chosen(context, IMAGES, LABELS, step=4)[0], loss), "other draws in another step"


def test_training_for_splitting_certifies_more_than_training_without_it():
    """Dark and bright noise that overlap, so that cells can hide which it is."""
    source, labels = torch.Generator().manual_seed(0), torch.arange(64) % 2
    noise = torch.randint(0, 180, (64, 3, 8, 8), generator=source)
    faint = ImageSet("faint", (noise + 40 * labels.view(-1, 1, 1, 1)).byte(), labels, ("dark", "bright"))

    def mean_radius(**chosen) -> float:
        trainer = Trainer(settings(epochs=20, **chosen), faint, faint, CPU)
        for number in range(20):
            trainer.epoch(number)
        images, right = faint.floats(slice(16)), labels[:16]
        return certify_l1(trainer.best.eval(), images, right, defense="splitting:scale=0.5").mean_radius

    assert mean_radius(shield="splitting:scale=0.5", method="splitting") > mean_radius()


def test_texts_make_them():
    assert list_objectives() == ("natural", "noise", "adversarial", "consistency", "splitting")
    assert objective("consistency") == Consistent(draws=2, agreement=10, entropy=0.5)
    assert objective("splitting:agreement=0") == SplittingVotes(draws=2, agreement=0, entropy=0)
    assert objective(None) == objective("natural") == Natural()
    assert objective("noise:sigma=0.1") == Noisy(sigma=0.1)
    text = "adversarial:loss=trades,eps=4/255,steps=3,beta=2,surrogate=soft,temperature=0.1,sigma=0.03"
    assert objective(text) == Adversarial(
        loss="trades", eps=4 / 255, steps=3, beta=2, surrogate="soft:temperature=0.1", sigma=0.03
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nature", "method='nature' is unknown.*Did you mean 'natural'"),
        ("natural:sigma=1", "natural has no setting 'sigma'"),
        ("noise:sigma=2", "sigma=2 should be from 0 to 1"),
        ("noise:sigma=loud", "sigma='loud' should be a number"),
        ("adversarial:loss=mart", "loss='mart' is unknown; choose one of pgd, trades"),
        ("adversarial:eps=8", "eps=8"),
        ("adversarial:steps=0", "steps=0"),
        ("adversarial:surrogate=sofd", "Did you mean 'soft'"),
        ("adversarial:temperature=0.1", "no setting 'temperature'"),
        ("adversarial:surrogate=soft,temperature=0", "temperature=0"),
        ("consistency:draws=1", "draws=1 should be >= 2"),
        ("splitting:agreement=-1", "agreement=-1"),
        ("splitting:scale=0.87", "splitting has no setting 'scale'"),
    ],
)
def test_bad_methods_are_named(text, named):
    with pytest.raises(InvalidInputError, match=named):
        settings(method=text)


def test_a_surrogate_that_does_not_fit_the_defense_is_refused_before_any_work():
    chosen = settings(shield="gaussian:sigma=0.1", method="adversarial:surrogate=score")
    with pytest.raises(InvalidInputError, match="surrogate='score' needs a quantizer"):
        Trainer(chosen, TRAINING, TRAINING, CPU)


@pytest.mark.parametrize(
    ("method", "shield", "named"),
    [
        ("consistency", None, "defense none is not random"),
        ("consistency", "median:size=3", "defense MedianFilter is not random; give one such as splitting"),
        ("splitting", None, "not for defense none"),
        ("splitting", "gaussian:sigma=0.1", "not for defense GaussianNoise; method consistency takes any"),
    ],
)
def test_draws_that_should_agree_need_a_defense_that_draws(method, shield, named):
    with pytest.raises(InvalidInputError, match=named):
        Trainer(settings(shield=shield, method=method), TRAINING, TRAINING, CPU)


def test_adversarial_training_makes_a_network_robust():
    """Two channels tell the classes apart without noise, but by less than eps; the third by more."""
    data = two_tones(64, seed=0)
    images = data.images.clone()
    images[:, :2] = (122 + 12 * data.labels).view(-1, 1, 1, 1).byte()  # tells them apart, until eps swaps it
    fragile = ImageSet("fragile", images, data.labels, data.classes)
    right = {}
    for method in ("natural", "adversarial:eps=0.1,steps=3"):
        trainer = Trainer(settings(epochs=10, method=method), fragile, fragile, CPU)
        for number in range(10):
            trainer.epoch(number)
        clean = fragile.floats()
        context = trainer.context
        found = Adversarial(eps=0.1, steps=5)._attacked(context, clean, fragile.labels, 99)
        with torch.no_grad():
            trainer.model.eval()
            right[method] = int((trainer.model(found).argmax(1) == fragile.labels).sum())
    assert right["adversarial:eps=0.1,steps=3"] >= right["natural"] + 16


class TooBright(Natural):
    def __call__(self, context, images, labels, *, step):
        return super().__call__(context, images.float() / 255 + 1, labels, step=step)


def test_a_gpu_looks_at_shielded_images_with_every_report(monkeypatch):
    weights, reports = [], []
    for later in (False, True):
        monkeypatch.setattr(checks, "_waits", lambda values, later=later: later)
        chosen = settings(epochs=1, shield=SHIELD, method="adversarial:steps=1,surrogate=soft")
        trainer = Trainer(chosen, TRAINING, TRAINING, CPU)
        trainer.epoch(0)
        weights.append(torch.cat([each.detach().flatten() for each in trainer.model.parameters()]))
        trainer.objective = TooBright()
        with pytest.raises(InvalidInputError, match="every value should lie in"):
            trainer.epoch(0, lambda *each: reports.append(each))
    assert torch.equal(*weights)
    assert not reports
