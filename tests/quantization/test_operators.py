import copy
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from conftest import noise_images
from torch import nn

import vqshield as vq
from vqshield.core.checks import NARROW_DTYPES
from vqshield.quantization.operators import Job, fresh_streams
from vqshield.quantization.pixels import narrowed


def classifier() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 9 * 10, 4)).eval()


def test_a_job_survives_its_encoding() -> None:
    for defense in (vq.RandDisc(), vq.PRD(padding="reflect", seed=2**64 - 1), vq.SWRD(weights_from="noisy")):
        job = Job(defense.recipe(), defense.seed, "torch")
        assert Job.decode(job.encode()) == job


@pytest.mark.parametrize("name", ["shield", "codebook", "quantize"])
def test_operators_keep_torchs_rules(name: str, defense_name: str) -> None:
    defense = vq.defend(classifier(), defense_name, codes=3, seed=1, backend="torch").defense
    images, streams = noise_images(2, 3, 9, 10), torch.arange(2)
    arguments: list[object] = [images, streams, defense._job]
    if name == "quantize":
        arguments.insert(1, defense.codebook(images, streams=streams))
    torch.library.opcheck(getattr(torch.ops.vqshield, name).default, tuple(arguments))


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("dtype", NARROW_DTYPES, ids=str)
def test_the_shield_of_bytes_and_halves_keeps_them_too(dtype: torch.dtype, backend: str) -> None:
    defense, streams = vq.PRD(codes=3, seed=1, backend=backend), torch.arange(2)
    images = narrowed(noise_images(2, 3, 9, 10), dtype)
    torch.library.opcheck(torch.ops.vqshield.shield.default, (images, streams, defense._job))
    ready = torch.compile(defense, fullgraph=True, backend="aot_eager")
    program = torch.export.export(defense, (images,), {"streams": streams}).module()
    for made in (ready, program):
        assert torch.equal(made(images, streams=streams), defense(images, streams=streams))


@pytest.mark.slow
def test_a_compiled_model_gives_the_same_logits_and_gradients(defense_name: str) -> None:
    model = vq.defend(classifier(), defense_name, codes=3, seed=1)
    images, streams = noise_images(2, 3, 9, 10).requires_grad_(), torch.arange(2)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    plain, traced = model(images, streams=streams), compiled(images, streams=streams)
    assert torch.allclose(plain, traced, atol=1e-6)
    (a,), (b,) = (torch.autograd.grad(logits.sum(), images) for logits in (plain, traced))
    assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("seed", [None, 5])
def test_a_compiled_model_draws_fresh_noise_in_every_call(seed: int | None) -> None:
    model = vq.defend(classifier(), "prd", codes=3, seed=seed)
    compiled = torch.compile(lambda x: (model(x), model(x)), fullgraph=True, backend="aot_eager")
    images = noise_images(2, 3, 9, 10)
    first, second = compiled(images), compiled(images)
    assert len(torch.unique(torch.stack([*first, *second]), dim=0)) == 4


def test_an_exported_model_runs() -> None:
    model = vq.defend(classifier(), "swrd", codes=3, seed=1)
    images, streams = noise_images(2, 3, 9, 10), torch.arange(2)
    program = torch.export.export(model, (images,), {"streams": streams})
    again = program.module()(images, streams=streams)
    assert torch.equal(again, model(images, streams=streams))


@pytest.fixture
def exported() -> tuple[vq.Defended, torch.export.ExportedProgram]:
    """A model, and its program for any number of images."""
    model = vq.defend(nn.Flatten(), "prd", codes=3, seed=1)
    count = torch.export.Dim("count", min=1, max=64)
    shapes = {"images": {0: count}, "streams": {0: count}}
    given = (noise_images(2, 3, 9, 10),), {"streams": torch.arange(2)}
    return model, torch.export.export(model, *given, dynamic_shapes=shapes)


def test_a_saved_program_serves_batches_of_any_size(exported, tmp_path: Path) -> None:
    model, program = exported
    torch.export.save(program, tmp_path / "model.pt2")
    again = torch.export.load(tmp_path / "model.pt2").module()
    for count in (1, 5):
        images, streams = noise_images(count, 3, 9, 10), torch.arange(count)
        assert torch.equal(again(images, streams=streams), model(images, streams=streams))
    with pytest.raises(ValueError, match="images contain 2"):
        again(images + 2, streams=streams)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor compiles C++")
def test_a_package_of_aotinductor_is_the_model(exported, tmp_path: Path) -> None:
    model, program = exported
    quick = {"aot_inductor.compile_wrapper_opt_level": "O0", "aot_inductor.precompile_headers": False}
    path = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "model.pt2"), inductor_configs=quick
    )
    ready = torch._inductor.aoti_load_package(path)
    images, streams = noise_images(5, 3, 9, 10), torch.arange(5)
    assert torch.equal(ready(images, streams=streams), model(images, streams=streams))


def test_an_exported_program_draws_afresh_in_every_call() -> None:
    for seed in (None, 1):
        program = torch.export.export(
            vq.defend(nn.Flatten(), "prd", codes=3, seed=seed), (noise_images(2, 3, 9, 10),)
        )
        again, images = program.module(), noise_images(2, 3, 9, 10)
        assert not torch.equal(again(images), again(images))


def test_bad_values_are_named_in_a_compiled_model_too() -> None:
    compiled = torch.compile(vq.SWRD(codes=3, seed=1), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="images contain 2"):
        compiled(noise_images(1, 3, 9, 10) * 0 + 2)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda defense: pickle.loads(pickle.dumps(defense))])
def test_a_copy_goes_on_with_the_same_streams_on_its_own(copied) -> None:
    defense, images = vq.PRD(codes=3, seed=1), noise_images(2, 3, 9, 10)
    defense(images)
    other = copied(defense)
    assert torch.equal(defense(images), other(images))
    defense(images)
    assert not torch.equal(defense(images), other(images))


def test_a_copy_of_an_unseeded_defense_draws_its_own_noise() -> None:
    defense, images = vq.PRD(codes=3), noise_images(2, 3, 9, 10)
    assert not torch.equal(defense(images), copy.deepcopy(defense)(images))


def test_streams_count_on_and_entropy_does_not_repeat() -> None:
    counter, images = torch.zeros(1, dtype=torch.int64), noise_images(3, 1, 2, 2)
    assert fresh_streams(counter, images, False).tolist() == [0, 1, 2]
    assert fresh_streams(counter, images[:2], False).tolist() == [3, 4]
    many = fresh_streams(counter, torch.empty(1000, 1, 1, 1), True)
    assert len(set(many.tolist())) == 1000
    assert fresh_streams(counter, images[:0], True).shape == (0,)


def test_the_stream_counter_is_no_part_of_the_weights() -> None:
    model = vq.defend(classifier(), "prd", codes=3, seed=1)
    assert set(model.state_dict()) == {f"classifier.{name}" for name in model.classifier.state_dict()}
