"""An exported model computes, in onnxruntime, what the model computes here."""

import importlib.util

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import vqshield as vq
from vqshield.classifiers import small_cifar10
from vqshield.cli.application import app
from vqshield.core.errors import InvalidInputError
from vqshield.quantization.noise import Draw, Stage
from vqshield_deploy import export_onnx

if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxruntime") is None:
    pytest.skip("onnx and onnxruntime are not installed (extra onnx)", allow_module_level=True)

import onnxruntime

from vqshield_deploy.onnx.graph import INT64, Graph, onnx, tensor
from vqshield_deploy.onnx.randomness import interleaved, normals, random_words

STREAMS = torch.tensor([0, 1, -4, 2**40 + 3, -(2**63)])
SEED = 2**64 - 5


def run(model, **inputs: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(model if isinstance(model, bytes) else str(model))
    (found,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    return torch.from_numpy(found)


def drawn(images: torch.Tensor, seed: int) -> dict[str, torch.Tensor]:
    signed = seed - 2**64 if seed >= 2**63 else seed
    return {"images": images, "seed": torch.tensor([signed]), "streams": STREAMS[: len(images)]}


@pytest.mark.parametrize("kind", ["words", "normals"])
def test_random_numbers_are_ours(kind: str) -> None:
    graph = Graph()
    lanes = random_words(graph, "streams", {Stage.INIT: 3, Stage.ASSIGNMENT: 41})
    made = (interleaved if kind == "words" else normals)(graph, lanes[Stage.ASSIGNMENT], 41)
    inputs = [tensor("seed", INT64, [1]), tensor("streams", INT64, ["batch"])]
    model = onnx.helper.make_model(
        graph.finish("g", inputs, [onnx.helper.make_empty_tensor_value_info(made)]),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
    )
    model.ir_version = 8
    found = run(model.SerializeToString(), seed=torch.tensor([SEED - 2**64]), streams=STREAMS)
    expected = getattr(Draw(SEED, STREAMS), kind)(Stage.ASSIGNMENT, 0, 41)
    if kind == "words":
        assert torch.equal(found, expected)
    else:
        assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    "defense",
    [
        vq.RandDisc(codes=1, seed=SEED, backend="torch"),
        vq.PRD(size=3, codes=6, seed=3, padding="reflect", tolerance=0.05, backend="torch"),
        vq.PRD(size=2, codes=6, init="random", sigma=0.0, seed=3, iterations=3, backend="torch"),
        vq.SWRD(size=3, codes=9, seed=SEED, backend="torch"),
        vq.SWRD(size=2, codes=5, beta=6500.0, noise="image", seed=1, backend="torch"),
        vq.RandDisc(codes=5, noise="shared", seed=1, tau=0.2, sigma=0.2, backend="torch"),
        vq.GaussianNoise(sigma=0.1, seed=5),
    ],
    ids=str,
)
def test_a_defense_gives_the_same_images(natural, tmp_path, defense) -> None:
    images = natural[:5, :, :13, :11].contiguous()
    images[1] = images[1, :, :1, :1]  # one colour: every distance of k-means++ is noise or zero
    written = export_onnx(defense, tmp_path / "a.onnx", shape=(3, 13, 11))
    found = run(written.path, **drawn(images, defense.seed))
    assert torch.allclose(found, defense(images, streams=STREAMS), atol=1e-6)
    assert {each.domain for each in onnx.load(written.path).opset_import} == {""}
    alone = run(written.path, **drawn(images[:1], defense.seed))
    assert torch.allclose(alone, found[:1], atol=1e-6)


def test_a_defended_model_gives_the_same_logits(natural, tmp_path) -> None:
    pytest.importorskip("onnxscript", reason="torch exports classifiers by onnxscript")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
    network(natural[:8, :, :12, :12])
    model = vq.defend(network, "swrd", codes=6, seed=4)
    written = export_onnx(model, tmp_path / "a.onnx", shape=(3, 12, 12))
    assert network.training  # as it was
    images = natural[:5, :, 3:15, 3:15].contiguous()
    with torch.no_grad():
        expected = model.eval()(images, streams=STREAMS)
    assert torch.allclose(run(written.path, **drawn(images, 4)), expected, atol=1e-4)


def test_a_vote_gives_the_shares_of_its_samples(natural, tmp_path) -> None:
    model = vq.defend(small_cifar10(), "prd:codes=4,sigma=0.2,tau=0.2,backend=torch", seed=SEED)
    voting = vq.Voting(model, samples=6)
    written = export_onnx(voting, tmp_path / "vote.onnx", shape=(3, 32, 32))
    images, streams = natural[:3], torch.tensor([0, 7, 2**40])
    found = run(written.path, images=images, seed=torch.tensor([SEED - 2**64]), streams=streams)
    samples = (streams[:, None] * 6 + torch.arange(6)).flatten()
    answers = model(images.repeat_interleave(6, 0), streams=samples).argmax(1)
    expected = nn.functional.one_hot(answers, 10).view(3, 6, 10).float().mean(1)
    assert torch.allclose(found, expected)
    assert 0 < float(found.max(1).values.min()) < 1  # the samples differ
    alone = run(written.path, images=images[1:2], seed=torch.tensor([SEED - 2**64]), streams=streams[1:2])
    assert torch.allclose(alone, found[1:2])


@pytest.mark.parametrize(
    ("voting", "message"),
    [
        (lambda: vq.Voting(vq.defend(small_cifar10(), "prd"), sequential=True), "sequential=True"),
        (lambda: vq.Voting(small_cifar10()), "as vq.defend made it"),
        (lambda: vq.Voting(vq.defend(small_cifar10(), "splitting:scale=0.1")), "Splitting cannot"),
    ],
)
def test_a_vote_without_fixed_samples_is_refused(tmp_path, voting, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        export_onnx(voting(), tmp_path / "vote.onnx", shape=(3, 32, 32))


def test_what_cannot_be_exported_is_named(tmp_path) -> None:
    class Darken(vq.Defense):
        def forward(self, images, *, streams=None):
            return images / 2

        def settings(self):
            return {}

    for model, settings, message in (
        (Darken(), {"shape": (3, 8, 8)}, "Darken cannot be exported"),
        (vq.SWRD(sample=30), {"shape": (3, 8, 8)}, "sample=30 cannot be exported"),
        (nn.Identity(), {"shape": (3, 8, 8)}, "not Identity"),
        (vq.SWRD(size=9), {"shape": (3, 8, 8)}, "size=9"),
        (vq.SWRD(), {"shape": (8, 8)}, "channels, rows and columns"),
        (vq.SWRD(), {"shape": (3, 8, 8), "opset": 17}, "opset=17"),
    ):
        with pytest.raises(ValueError, match=message):
            export_onnx(model, tmp_path / "a.onnx", **settings)
    assert list(tmp_path.iterdir()) == []


def test_the_command_refuses_shapes_and_files_that_are_there(tmp_path) -> None:
    path = tmp_path / "a.onnx"
    assert "3x32x32" in CliRunner().invoke(app, ["export", str(path), "--shape", "32"]).stderr
    path.write_bytes(b"mine")
    assert "exists" in CliRunner().invoke(app, ["export", str(path)]).stderr
    assert path.read_bytes() == b"mine"
