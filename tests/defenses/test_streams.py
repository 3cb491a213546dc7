"""A seeded defense never repeats a stream within a program; a program that is run again repeats them all."""

import copy
import hashlib
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import noise_images
from defenses import stream_workers
from defenses.stream_workers import IMAGE, Drawn, Shielded, take, take_many
from torch import nn
from torch.utils.data import DataLoader

import vqshield as vq
from vqshield import processes
from vqshield.errors import InvalidInputError

START_METHODS = [each for each in ("fork", "spawn") if each in multiprocessing.get_all_start_methods()]


def defense() -> vq.PRD:
    return vq.PRD(codes=3, seed=1)


def test_a_plain_program_counts_from_nought() -> None:
    assert take_many(defense(), 4) == [0, 1, 2, 3]
    assert defense().streams(IMAGE.expand(3, -1, -1, -1)).tolist() == [0, 1, 2]


def test_eight_threads_share_a_counter() -> None:
    shared, together = defense(), threading.Barrier(8)

    def work(_: int) -> list[int]:
        together.wait()
        return take_many(shared, 250)

    with ThreadPoolExecutor(8) as pool:
        found = [number for each in pool.map(work, range(8)) for number in each]
    assert sorted(found) == list(range(2000))


def loaded(
    start: str, workers: int, *, epochs: int = 3, made: bool = True, persistent: bool = False
) -> list[int]:
    """The streams of some epochs, and of the main process before and after."""
    chosen = defense()
    context = None if workers == 0 else start
    loader = DataLoader(
        Drawn(chosen if made else None), batch_size=None, num_workers=workers,
        multiprocessing_context=context, persistent_workers=persistent,
    )  # fmt: skip
    found = [take(chosen)]
    for _ in range(epochs):
        found += [int(number) for number in loader]
    return [*found, take(chosen)]


def shielded(start: str, seed: int | None) -> list[str]:
    """What two workers make of the same image, again and again."""
    loader = DataLoader(
        Shielded(vq.PRD(codes=3, seed=seed)), batch_size=None, num_workers=2, multiprocessing_context=start
    )
    return [hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in loader]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("start", START_METHODS)
def test_no_worker_and_no_epoch_repeats_a_stream(start: str, workers: int) -> None:
    epochs = 1 if (start, workers) == ("spawn", 4) else 2  # each of those workers imports torch for itself
    found = loaded(start, workers, epochs=epochs)
    assert len(found) == len(set(found)) == 6 * epochs + 2
    assert found[-1] == (1 if workers else 13), "workers do not count for the main process"


@pytest.mark.parametrize("start", START_METHODS[:1])
def test_workers_that_live_on_or_make_the_defense_themselves_do_not_repeat_one_either(start: str) -> None:
    assert len(set(loaded(start, 2, persistent=True))) == 20
    workers = loaded(start, 2, made=False)[1:-1]
    assert len(set(workers)) == 18


def again(code: str) -> str:
    tests = str(Path(__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {tests!r})\n{code}"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("start", START_METHODS[:1])
def test_a_program_that_is_run_again_repeats_its_workers_streams(start: str) -> None:
    code = (
        "import json\n"
        "from defenses.test_streams import loaded, shielded\n"
        "if __name__ == '__main__':\n"
        f"    streams = [loaded({start!r}, workers, epochs=2) for workers in (0, 1, 4)]\n"
        f"    images = [shielded({start!r}, seed) for seed in (5, None)]\n"
        "    print(json.dumps([streams, images]))"
    )
    (streams, (seeded, free)), (same, (repeated, other)) = (json.loads(again(code)) for _ in range(2))
    assert streams == same
    assert seeded == repeated
    assert len({*seeded, *free, *other}) == 3 * len(seeded) == 18


@pytest.mark.slow
@pytest.mark.parametrize("start", START_METHODS)
def test_processes_that_are_handed_a_defense_do_not_repeat_it(start: str) -> None:
    chosen = defense()
    context = multiprocessing.get_context(start)
    found = take_many(chosen, 5)
    for _ in range(2):
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            found += pool.submit(take_many, chosen, 5).result()
    assert len(set(found)) == 15


@pytest.mark.slow
def test_a_defense_made_in_a_process_counts_from_nought_there() -> None:
    """What a run records must not depend on which worker it ran in."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(stream_workers.made_here, range(3))) == [[0, 1, 2]] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_bare_forks_do_not_repeat_a_stream() -> None:
    chosen = defense()
    found = take_many(chosen, 3)
    for _ in range(3):
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.write(writing, " ".join(map(str, take_many(chosen, 3))).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            found += [int(number) for number in pipe.read().split()]
        os.wait()
    assert len(set(found)) == 12


@pytest.mark.slow
def test_two_ranks_of_a_distributed_job_draw_different_noise(tmp_path: Path) -> None:
    runs = []
    for number in range(2):
        store = tmp_path / f"store{number}"
        torch.multiprocessing.spawn(stream_workers.ranked, (str(store), str(tmp_path)), nprocs=2)
        runs.append(json.loads((tmp_path / "streams.json").read_text()))
    assert runs[0] == runs[1]
    assert runs[0][0] == [0, 1, 2, 3, 4]
    assert len({*runs[0][0], *runs[0][1]}) == 10


def test_ranks_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "4")
        found += take_many(defense(), 3)
    assert found[:3] == [0, 1, 2]
    assert len(set(found)) == 12
    monkeypatch.setenv("WORLD_SIZE", "1")  # a cluster's way of saying that there is one process
    assert processes.rank() == 0
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("RANK", "first")
    assert take(defense()) == 0


def test_a_module_on_the_move_keeps_its_count() -> None:
    with torch.device("meta"):
        model = vq.Defended(nn.Conv2d(3, 2, 3), defense())
    model.to_empty(device="cpu")
    assert take_many(model.defense, 2) == [0, 1]
    model.share_memory().half().float().to("cpu")
    assert take_many(model.defense, 2) == [2, 3]
    assert not model.defense._next_stream.is_shared()


def test_a_pickled_defense_does_not_share_its_counter() -> None:
    chosen = defense()
    take(chosen)
    with_tensors = multiprocessing.reduction.ForkingPickler.dumps(chosen)
    assert not chosen._next_stream.is_shared()
    assert take_many(pickle.loads(with_tensors), 2) == take_many(chosen, 2) == [1, 2]


@pytest.mark.parametrize("seed", [None, 1])
def test_streams_by_content_follow_the_image_alone(seed: int | None) -> None:
    chosen = vq.PRD(codes=3, seed=seed, streams="content")
    images = noise_images(5, 3, 8, 8)
    first = chosen(images)
    assert torch.equal(chosen(images), first)
    assert torch.equal(chosen(images.flip(0)), first.flip(0))
    assert torch.equal(copy.deepcopy(chosen)(images[2:3]), first[2:3])
    assert len(set(chosen.streams(images).tolist())) == 5
    nearly = images.clone()
    nearly[0, 0, 0, 0] += 1e-6
    assert (chosen.streams(nearly) == chosen.streams(images)).tolist() == [False, True, True, True, True]
    assert "streams='content'" in repr(chosen)
    assert torch.equal(chosen(images, streams=torch.arange(5)), chosen(images, streams=torch.arange(5)))
    assert not torch.equal(chosen.reseeded(7)(images), first)


def test_a_compiled_model_draws_by_content_too() -> None:
    model = vq.defend(nn.Flatten(), "prd", codes=3, seed=1, streams="content")
    images = noise_images(2, 3, 8, 8)
    ready = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(ready(images), model(images))
    assert torch.equal(ready(images), ready(images))


def test_streams_that_a_run_must_not_fix_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="streams='mine' is unknown; choose one of content, fresh"):
        vq.SWRD(streams="mine")
    with pytest.raises(InvalidInputError, match="streams=content in 'prd:streams=content' cannot be chosen"):
        vq.defenses.from_text("prd:streams=content", seed=0)


@pytest.mark.parametrize("surrogate", ["ste", "soft", "score"])
def test_forward_mode_is_refused_rather_than_zero(surrogate: str) -> None:
    model = vq.Defended(nn.Flatten(), vq.PRD(codes=3, seed=1), surrogate=surrogate)
    images = noise_images(2, 3, 8, 8)
    with pytest.raises(InvalidInputError, match="forward-mode tangent"):
        torch.func.jvp(model, (images,), (torch.ones_like(images),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(images, torch.ones_like(images))
        with pytest.raises(InvalidInputError, match="forward-mode tangent"):
            model(dual)
        assert model(images).shape == (2, 3 * 8 * 8)
