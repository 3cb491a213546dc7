"""A number is of the model that was given: every verb reports what calling the model gives, or refuses."""

import copy
import re
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import vqshield as vq
from vqshield.auditing import AuditSettings
from vqshield.auditing.page import audit_notes, render_audit
from vqshield.classifiers import named_defense, save_classifier, small_cifar10
from vqshield.classifiers.sources import bundled_as_trained
from vqshield.core.errors import InvalidInputError
from vqshield.data import sample
from vqshield.images.files import encode_png
from vqshield.ladders.settings import LadderSettings
from vqshield.leaderboards.page import board_notes
from vqshield.leaderboards.rows import BoardRow
from vqshield.leaderboards.study import BoardSettings
from vqshield_deploy import export_onnx

N = 12
PHOTOS = sample(N)
IMAGES, LABELS = PHOTOS.floats(), PHOTOS.labels
TINY_LADDER = LadderSettings(calls=(100,), draws=(1,), suite="pgd:steps=1", runs=3, selection=1, batch=N)
TINY_AUDIT = AuditSettings(runs=2, queries=2, directions=1, draws=4, probe="pgd:steps=1", rehearsal=True)


class AlwaysWrong(vq.Defended):
    """A subclass whose answers have nothing to do with its classifier and its defense."""

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        return -super().forward(images, streams=streams)


class Constant(vq.Defended):
    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        return torch.eye(10)[torch.full((len(images),), 3)] + 0 * images.sum()


def negate_after(model: nn.Module) -> nn.Module:
    model.register_forward_hook(lambda module, inputs, logits: -logits)
    return model


def darken_before(model: nn.Module) -> nn.Module:
    model.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0.1,))
    return model


def without_noise(model: vq.Defended) -> nn.Module:
    """The defense gives back what came in: as if there were none."""
    model.defense.register_forward_hook(lambda module, inputs, images: inputs[0])
    return model


def forward_of_its_own(model: nn.Module) -> nn.Module:
    model.forward = lambda images, **streams: torch.eye(10)[torch.full((len(images),), 3)] + 0 * images.sum()
    return model


def hook_in_the_classifier(model: vq.Defended) -> nn.Module:
    model.classifier.register_forward_hook(lambda module, inputs, logits: -logits)
    return model


def subclass(kind: type[vq.Defended]):
    return lambda model: kind(model.classifier, model.defense)


class Named(vq.Defended):
    """A subclass that adds data alone."""

    name: str = "mine"


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        return -self.inner(images)


CHANGES = {
    "as it is": lambda model: model,
    "subclass": subclass(AlwaysWrong),
    "constant": subclass(Constant),
    "named": subclass(Named),
    "negated by a hook": negate_after,
    "darkened by a hook": darken_before,
    "noise removed by a hook": without_noise,
    "instance forward": forward_of_its_own,
    "hook in the classifier": hook_in_the_classifier,
    "wrapped": Wrapper,
    "sequential": nn.Sequential,
    "data parallel": nn.DataParallel,
    "compiled": lambda model: torch.compile(model, backend="eager"),
}


@pytest.fixture(autouse=True)
def forget_compiled() -> Iterator[None]:
    """Models are compiled so often here that torch.compile gives up on the code of all of them."""
    yield
    torch._dynamo.reset()


DEFENSES = {
    "swrd": lambda: vq.SWRD(iterations=2),
    "content": lambda: vq.PRD(streams="content", iterations=2),
    "bit depth": lambda: vq.defenses.create_any("bitdepth", bits=2),
    "function": lambda: vq.Preprocessor(lambda images: 1 - images),
}


def expected(model: nn.Module) -> float:
    """The accuracy of ten calls of the model itself."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        return sum((model(IMAGES).argmax(1) == LABELS).double().mean().item() for _ in range(10)) / 10


@settings(max_examples=16)
@given(
    changes=st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=2, unique=True),
    defense=st.sampled_from(sorted(DEFENSES)),
    train=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
)
def test_the_clean_accuracy_is_that_of_the_model_itself(
    changes: list[str], defense: str, train: bool, dtype: torch.dtype
) -> None:
    model = vq.defend(small_cifar10().to(dtype), DEFENSES[defense]())
    for change in changes:
        if not isinstance(model, vq.Defended):
            break  # what is wrapped has no defense to change any more
        model = CHANGES[change](model)
    model.train(train)
    wanted, apart = expected(model), 3 / N if defense == "swrd" else 1e-9
    assert vq.evaluate(model, IMAGES, LABELS, samples=5).rows[-1].mean == pytest.approx(wanted, abs=apart)
    ladder = vq.ladder(model, IMAGES[:4], LABELS[:4], settings=TINY_LADDER, controls=())
    few = vq.evaluate(model, IMAGES[:4], LABELS[:4], samples=5).rows[-1].mean
    assert ladder.row("natural").mean == pytest.approx(few, abs=2 / 4 if defense == "swrd" else 1e-9)


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_an_audit_is_of_the_model_itself(change: str) -> None:
    model = CHANGES[change](vq.defend(small_cifar10(), vq.defenses.create_any("bitdepth", bits=2)))
    report = vq.audit(model, IMAGES, LABELS, attacks="noise:tries=1", settings=TINY_AUDIT, eps=1e-6)
    assert report.audit.natural.mean == pytest.approx(expected(model))


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_certificate_is_of_the_model_itself_or_refused(change: str) -> None:
    torch.manual_seed(0)
    model = CHANGES[change](vq.defend(small_cifar10(), "gaussian:sigma=0.05"))
    if change not in ("as it is", "named", "hook in the classifier"):
        with pytest.raises(InvalidInputError, match=r"answers differently|draws nothing"):
            vq.certify(model, IMAGES, LABELS, certificate="vote", selection=5, samples=20)
        return
    found = vq.certify(model, IMAGES, LABELS, certificate="vote", selection=20, samples=60)
    with torch.no_grad():
        votes = torch.stack([model(IMAGES).argmax(1) for _ in range(60)]).mode(0).values
    right = (votes == LABELS).double().mean().item()
    assert abs(found.vote.right - right) <= 2.5 / N, "the vote of the model itself, two close calls aside"


def test_a_model_that_is_always_wrong_is_not_certified() -> None:
    model = AlwaysWrong(small_cifar10(), vq.GaussianNoise(sigma=0.05))
    with pytest.raises(
        InvalidInputError, match=r"give a defense.*as it was made: gaussian:sigma=0.05 is inside"
    ):
        vq.certify(model, IMAGES, LABELS, certificate="vote", selection=5, samples=20)


@pytest.mark.parametrize("wrap", [nn.Sequential, nn.DataParallel, Wrapper, CHANGES["compiled"]])
def test_a_defense_inside_a_model_is_said(wrap) -> None:
    found = vq.evaluate(wrap(vq.defend(small_cifar10(), "prd:codes=4")), IMAGES, LABELS, samples=2,
                        attacks="pgd:steps=1")  # fmt: skip
    assert found.manifest.classifier.inside == ("prd:codes=4",)
    assert "with its own defense (prd:codes=4)" in found.title
    assert "the defense is part of the model" in found.warning
    assert found.row("none").std > 0 or found.manifest.classifier.random


class RandomOnDarkImages(nn.Module):
    """Not random on the first eight images."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_cifar10()

    def forward(self, images: Tensor) -> Tensor:
        dark = images.flatten(1).mean(1) < 0.01
        return self.net(images) + 100 * dark[:, None] * torch.rand(len(images), 10)


def test_a_model_that_is_random_on_other_images_than_the_first_is_sampled() -> None:
    images = torch.cat([IMAGES, torch.zeros(20, 3, 32, 32)])
    labels = torch.cat([LABELS, torch.arange(20) % 10])
    found = vq.evaluate(RandomOnDarkImages(), images, labels, samples=10, attacks="noise:tries=1")
    assert found.row("none").std > 0, "ten samples, not one copied ten times"
    assert "random on some of these images" in found.warning


def invert(images: Tensor) -> Tensor:
    return 1 - images


@pytest.mark.parametrize(
    "given",
    ["bitdepth:bits=1", "test_measured_model:invert", invert, nn.Hardtanh(0, 0.2), vq.SWRD(codes=2),
     vq.Preprocessor(invert, name="mine")],
    ids=["spec", "module:function", "function", "module", "Defense", "Preprocessor"],
)  # fmt: skip
def test_every_verb_takes_every_kind_of_defense(given, tmp_path) -> None:
    net, few = small_cifar10(), (IMAGES[:2], LABELS[:2])
    assert vq.defend(net, given)(few[0]).shape == (2, 10)
    row = vq.evaluate(net, *few, defense=given, samples=2).rows[-1]
    assert row.defense != "none"
    assert vq.ladder(net, *few, defense=given, settings=TINY_LADDER, controls=()).row("natural").n == 2
    assert vq.audit(net, *few, defense=given, attacks="noise:tries=1", settings=TINY_AUDIT).audit.n == 2
    board = vq.leaderboard(tmp_path / "board", [given] if not isinstance(given, str) else [
        BoardRow(name="mine", defense=given)], limit=1,
        settings=BoardSettings(ladder=TINY_LADDER, audit=TINY_AUDIT))  # fmt: skip
    assert board.complete
    with pytest.raises(InvalidInputError, match=r"no certificate is known|sigma|certif"):
        vq.certify(net, *few, defense=given if given != "bitdepth:bits=1" else "jpeg", certificate="vote",
                   selection=2, samples=4)  # fmt: skip
    tuned = vq.harden(net_to_train(), given, IMAGES, LABELS, epochs=1, batch=4, out=tmp_path / "runs")
    assert tuned.model(few[0]).shape == (2, 10)
    picture = tmp_path / "in.png"
    picture.write_bytes(encode_png(IMAGES[0].mul(255).byte().permute(1, 2, 0).numpy()))
    assert vq.purify(picture, tmp_path / "out", defense=given)[0].error is None


def net_to_train() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 10, 3), nn.BatchNorm2d(10), nn.AdaptiveAvgPool2d(1), nn.Flatten())


VERBS = {
    "evaluate": lambda model, **more: vq.evaluate(model, IMAGES, LABELS, **more),
    "certify": lambda model, **more: vq.certify(model, IMAGES, LABELS, selection=2, samples=4, **more),
    "certify_l1": lambda model, **more: vq.certify_l1(model, IMAGES, LABELS, **more),
    "audit": lambda model, **more: vq.audit(model, IMAGES, LABELS, settings=TINY_AUDIT, **more),
    "ladder": lambda model, **more: vq.ladder(model, IMAGES, LABELS, settings=TINY_LADDER, **more),
}


@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("wrap", [lambda model: model, nn.Sequential])
def test_a_model_with_a_defense_takes_no_second_one(verb: str, wrap) -> None:
    model = wrap(vq.defend(small_cifar10(), "splitting:scale=0.05"))
    with pytest.raises(
        InvalidInputError, match=r"has a defense already \(splitting:scale=0.05\).*model.classifier"
    ):
        VERBS[verb](model, defense="prd")
    with pytest.raises(InvalidInputError, match="has a defense already"):
        VERBS[verb](model, defense="none")
    with pytest.raises(InvalidInputError, match="whole model"):
        VERBS[verb](small_cifar10(), defense=vq.defend(small_cifar10(), "prd"))


def test_what_is_given_is_measured(tmp_path) -> None:
    """A classifier alone; one that was fine-tuned behind a defense, behind that one; and it is said."""
    few = (IMAGES[:4], LABELS[:4])
    assert {row.defense for row in vq.evaluate(small_cifar10(), *few, samples=1).rows} == {"none"}
    assert {row.defense for row in vq.evaluate("small-cifar10", *few, samples=1).rows} == {"none"}
    with pytest.raises(
        InvalidInputError, match="draws nothing, which leaves nothing to certify; give a defense"
    ):
        vq.certify("small-cifar10", *few, certificate="vote", selection=2, samples=4)
    named = named_defense("small-cifar10-hardened")
    assert named == "swrd:size=3,codes=25,noise=shared,sigma=0.06,tau=0.06"
    path = tmp_path / "mine.safetensors"
    save_classifier(path, bundled_as_trained("small-cifar10-hardened"), {"shield": named})
    for classifier in ("small-cifar10-hardened", str(path)):
        found = vq.evaluate(classifier, "cifar10-sample", limit=4, samples=1)
        assert {row.defense for row in found.rows} == {"none", named}
        assert "fine-tuned" not in (found.warning or "")
        assert (
            vq.ladder(classifier, limit=2, settings=TINY_LADDER, controls=()).plan.subjects[0].defense
            == named
        )
        other = vq.evaluate(classifier, "cifar10-sample", limit=4, samples=1, defense="prd")
        assert f"was fine-tuned behind {named}, not prd" in other.warning
        own = vq.SWRD.hardened("cifar10")
        same = vq.evaluate(classifier, "cifar10-sample", limit=4, samples=1, defense=own)
        assert "fine-tuned" not in (same.warning or "")


def test_every_verb_says_that_a_classifier_was_tuned_behind_another_defense(tmp_path) -> None:
    net, other, note = (
        "small-cifar10-hardened",
        "prd:sigma=0.1,tau=0.1",
        r"was fine-tuned behind swrd:.*, not",
    )
    given = {"defense": other, "samples": 2}
    assert re.search(f"{note} prd", vq.evaluate(net, IMAGES, LABELS, **given).warning), "with tensors too"
    found = vq.certify(net, limit=2, certificate="vote", selection=2, **given)
    assert re.search(f"WARNING: {net} {note} prd", found.caveats()[0])
    exact = vq.certify_l1(net, limit=2, defense="splitting:scale=0.05")
    assert re.search(f"WARNING: {net} {note} splitting", exact.caveats()[0])
    audited = vq.audit(net, limit=2, defense=other, attacks="noise:tries=1", settings=TINY_AUDIT)
    assert re.search(f"WARNING: {net} {note} prd", audit_notes(audited)[0])
    assert re.search(f"{net}; WARNING: .*fine-tuned behind", render_audit(audited))
    bare = f"mine={net}"
    ladder = vq.ladder(limit=2, defense=other, settings=TINY_LADDER, controls=[bare])
    assert [bool(re.search(f"{note} none", warning)) for warning in ladder.warnings] == [True]
    tiny = BoardSettings(ladder=TINY_LADDER, audit=TINY_AUDIT)
    board = vq.leaderboard(tmp_path, ["prd"], classifier=net, sources=(), limit=2, settings=tiny)
    assert re.search(f"WARNING: prd: {net} {note} prd", board_notes(board)[0])


def test_a_file_does_not_choose_the_code_that_runs(tmp_path) -> None:
    path = tmp_path / "mine.safetensors"
    save_classifier(path, bundled_as_trained("small-cifar10"), {"shield": "antigravity:fly"})
    with pytest.raises(InvalidInputError, match="fine-tuned behind 'antigravity:fly', which is code"):
        vq.evaluate(str(path), limit=2, samples=1)
    assert vq.evaluate(str(path), limit=2, samples=1, defense="none").rows[0].n == 2


def test_two_functions_of_one_name_are_not_mixed_up() -> None:
    with pytest.raises(InvalidInputError, match="two defenses are called 'in memory: lambda'"):
        vq.evaluate(
            small_cifar10(), IMAGES, LABELS, defense=[lambda images: images, lambda images: 1 - images]
        )


def test_a_defense_with_hooks_is_measured_in_its_model_alone() -> None:
    defense = vq.PRD()
    defense.register_forward_hook(lambda module, inputs, images: inputs[0])
    with pytest.raises(InvalidInputError, match=r"PRD has hooks.*vq.defend\(classifier, defense\)"):
        vq.evaluate(small_cifar10(), IMAGES, LABELS, defense=defense)


class WithoutNoise(vq.GaussianNoise):
    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        return images


class Grey(vq.Splitting):
    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        return 0 * images + 0.5


class MySettings(vq.GaussianNoise):
    def __init__(self, **options) -> None:
        super().__init__(sigma=0.05, **options)


def test_a_defense_of_another_forward_has_no_certificate_of_its_base() -> None:
    model = vq.defend(small_cifar10(), WithoutNoise(sigma=0.05))
    with pytest.raises(InvalidInputError, match="no certificate is known for WithoutNoise"):
        vq.certify(model, IMAGES, LABELS, certificate="vote", selection=5, samples=20)
    found = vq.Voting(model, samples=20, selection=5, seed=0).predict(IMAGES)
    assert found.norm is None
    assert not found.radii.any()
    assert MySettings().certificate_terms() == vq.GaussianNoise(sigma=0.05).certificate_terms()


def test_another_splitting_is_neither_certified_nor_replaced() -> None:
    model = vq.defend(small_cifar10(), Grey(scale=0.05))
    with pytest.raises(InvalidInputError, match="'in memory: Grey' has no L1 certificate"):
        vq.certify_l1(model, IMAGES, LABELS)
    found = vq.Voting(model, samples=2, selection=2, abstain=False).predict(IMAGES)
    assert torch.equal(found.classes, model(IMAGES).argmax(1))
    assert found.norm is None
    with pytest.raises(InvalidInputError, match="model should be a module, not str"):
        vq.Voting("small-cifar10-hardened")


ALTERED = {**CHANGES, "another forward of the defense": lambda model: vq.defend(model.classifier, Inverted())}


class Inverted(vq.PRD):
    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        return 1 - images


@pytest.mark.parametrize("change", sorted(ALTERED.keys() - {"as it is", "named", "hook in the classifier"}))
def test_a_file_for_onnx_is_of_the_model_itself_or_refused(change: str, tmp_path) -> None:
    model = ALTERED[change](vq.defend(small_cifar10(), "prd:codes=4"))
    with pytest.raises(
        InvalidInputError, match=r"another model|should be a Defended model|cannot be exported"
    ):
        export_onnx(model, tmp_path / "it.onnx", shape=(3, 32, 32))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("wrap", [nn.Sequential, Wrapper, CHANGES["compiled"]])
def test_a_defense_inside_a_model_is_not_trained_or_calibrated_behind_another(wrap, tmp_path) -> None:
    model = wrap(vq.defend(net_to_train(), "prd"))
    for defense in ("swrd", None):
        with pytest.raises(InvalidInputError, match="has a defended model inside; give the classifier alone"):
            vq.harden(model, defense, IMAGES, LABELS, epochs=1, batch=4, out=tmp_path)
        with pytest.raises(InvalidInputError, match="has a defended model inside; give the classifier alone"):
            vq.calibrate(model, IMAGES, defense=defense)


def test_a_title_does_not_name_a_calibration_that_was_not_made() -> None:
    with pytest.raises(InvalidInputError, match="'calibrated:data=cifar10' is given without a defense"):
        vq.evaluate(small_cifar10(), IMAGES, LABELS, batch_norm="calibrated:data=cifar10")


def test_a_classifier_is_no_transfer_source_for_itself_under_any_name(tmp_path) -> None:
    copied = tmp_path / "copied.safetensors"
    save_classifier(copied, bundled_as_trained("small-cifar10"))
    tiny = BoardSettings(ladder=TINY_LADDER, audit=TINY_AUDIT)
    rows = [
        BoardRow(name="copied", defense="bitdepth", classifier=str(copied)),
        vq.defend(small_cifar10(), "bitdepth"),
    ]
    board = vq.leaderboard(tmp_path / "board", rows, limit=1, settings=tiny)
    assert [row.not_run["transfer"] for row in board.rows] == ["the only source is this very classifier"] * 2
