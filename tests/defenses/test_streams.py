"""A seeded defense never repeats a stream within a program; a program that is run again repeats them all."""

import copy
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
from torch import nn

import vqshield as vq
from defenses import stream_workers
from defenses.stream_workers import IMAGE, loaded, take, take_many
from vqshield.core import processes
from vqshield.core.errors import InvalidInputError

# A process that is spawned imports torch for itself, which takes seconds. These are forked from a server that
# has imported it once, and given everything pickled, as spawned ones are.
START_METHODS = [each for each in ("fork", "forkserver") if each in multiprocessing.get_all_start_methods()]
FRESH = START_METHODS[-1] if START_METHODS else "spawn"


@pytest.fixture(autouse=True, scope="module")
def torch_is_imported_once() -> None:
    multiprocessing.get_context(FRESH).set_forkserver_preload(["defenses.stream_workers"])


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


@pytest.mark.parametrize("start", START_METHODS)
def test_no_worker_and_no_epoch_repeats_a_stream(start: str) -> None:
    found = loaded(start, 2, epochs=2)
    assert len(found) == len(set(found)) == 6 * 2 + 2
    assert found[-1] == 1, "workers do not count for the main process"


def test_without_workers_the_epochs_count_on() -> None:
    assert loaded("none", 0, epochs=2) == list(range(14))


@pytest.mark.parametrize("start", START_METHODS[:1])
def test_workers_that_live_on_or_make_the_defense_themselves_do_not_repeat_one_either(start: str) -> None:
    assert len(set(loaded(start, 2, persistent=True))) == 20
    workers = loaded(start, 2, made=False)[1:-1]
    assert len(set(workers)) == 18


@pytest.mark.slow
@pytest.mark.parametrize("start", START_METHODS[:1])
def test_a_program_that_is_run_again_repeats_its_workers_streams(start: str) -> None:
    """A first run's numbers stand here: a worker's are consecutive, and begin anywhere in each epoch."""
    first = [range(at, at + 6) for at in (-2640580952225026636, -6860951032351432870)]
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from defenses.stream_workers import loaded\n"
        f"if __name__ == '__main__': print(loaded({start!r}, 1, epochs=2))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == [0, *first[0], *first[1], 1]


@pytest.mark.slow
@pytest.mark.parametrize("start", START_METHODS[:1])
def test_a_program_that_is_run_again_repeats_its_workers_images_if_there_is_a_seed(start: str) -> None:
    code = (
        f"import json, sys, warnings; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "warnings.simplefilter('ignore')  # four workers on a machine with fewer cores\n"
        "from defenses.stream_workers import shielded\n"
        f"images = [[shielded({start!r}, workers, seed) for workers in (0, 1, 4)] for seed in (5, None)]\n"
        "print(json.dumps(images))"
    )
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        for _ in range(2)
    ]
    (seeded, free), (repeated, other) = runs
    assert seeded == repeated
    every = [image for found in (seeded, free, other) for images in found for image in images]
    assert len(set(every)) == len(every) == 3 * 3 * 6


@pytest.mark.parametrize("start", START_METHODS)
def test_processes_that_are_handed_a_defense_do_not_repeat_it(start: str) -> None:
    chosen = defense()
    context = multiprocessing.get_context(start)
    found = take_many(chosen, 5)
    for _ in range(2):
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            found += pool.submit(take_many, chosen, 5).result()
    assert len(set(found)) == 15


def test_a_defense_made_in_a_process_counts_from_nought_there() -> None:
    """What a run records must not depend on which worker it ran in."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(FRESH)) as pool:
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


def test_two_ranks_of_a_distributed_job_draw_different_noise(tmp_path: Path) -> None:
    runs = []
    for number in range(2):
        store = tmp_path / f"store{number}"
        torch.multiprocessing.start_processes(
            stream_workers.ranked, (str(store), str(tmp_path)), nprocs=2, start_method=FRESH
        )
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
