import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from small_runs import TEST, TINY, TRAINING, Watcher
from vqshield.classifiers import load_classifier
from vqshield.core.environment import pick_device
from vqshield.core.errors import FileFormatError, InvalidInputError, VqshieldError
from vqshield.training.run import checkpoint_due, read_checkpoint, train_on, write_checkpoint
from vqshield.training.settings import TrainSettings
from vqshield.training.shielding import accuracy
from vqshield.training.trainer import channel_statistics, epoch_seed


def settings(**changes):
    tiny = {"data": "cifar10", "arch": "small", "epochs": 2, "batch": 16, "peak_lr": 0.05, "options": TINY}
    return TrainSettings(**{**tiny, "padding": 1, **changes})


def run(out, chosen, **more):
    return train_on(chosen, TRAINING, TEST, out=out, **more)


def test_it_learns_and_the_card_tells_how(tmp_path):
    watcher = Watcher()
    result = run(tmp_path, settings(epochs=4), progress=watcher)
    card = json.loads(result.card_file.read_text())
    assert card == result.card
    assert card["test_accuracy"] >= 0.9
    assert [epoch["epoch"] for epoch in card["history"]] == [1, 2, 3, 4]
    assert watcher.reports[-1][2].endswith(f"test {card['history'][-1]['test_accuracy']:.2%}")
    assert (card["train_images"], card["test_images"], card["seed"]) == (64, 32, 0)
    assert card["torch"] == torch.__version__
    assert card["network"]["options"]["widths"] == [4, 6]
    assert str(tmp_path) not in result.card_file.read_text()
    assert [(epoch, done) for epoch, done, _ in watcher.reports[::2]] == [(1, 4), (2, 8), (3, 12), (4, 16)]


def test_epochs_between_tests_are_not_tested_and_end_with_the_same_weights(tmp_path):
    watcher = Watcher()
    tested = run(tmp_path / "always", settings(epochs=5))
    seldom = run(tmp_path / "seldom", settings(epochs=5), test_every=2, progress=watcher)
    seen = [epoch["test_accuracy"] for epoch in tested.card["history"]]
    assert [epoch["test_accuracy"] for epoch in seldom.card["history"]] == [None, seen[1], None, *seen[3:]]
    assert tested.weights.read_bytes() == seldom.weights.read_bytes()
    assert ["test" in doing for *_, doing in watcher.reports] == [False] * 3 + [True] * 7
    with pytest.raises(InvalidInputError, match="test_every=0"):
        run(tmp_path / "never", settings(), test_every=0)


def test_checkpoints_that_take_long_are_written_less_often():
    assert checkpoint_due(0.0, 0.0)  # after the first epoch, whatever it will cost
    assert not checkpoint_due(1.0, 0.0)
    assert not checkpoint_due(1.0, 19.9)
    assert checkpoint_due(1.0, 20.1)  # a twentieth of the time since then is the second that writing takes
    assert checkpoint_due(0.2, 0.0)  # as fast as this, after every epoch


def test_a_run_whose_checkpoints_are_not_due_resumes_from_the_last_and_keeps_the_end(tmp_path, monkeypatch):
    chosen = settings(epochs=4)
    unbroken = run(tmp_path / "unbroken", chosen)
    first = "vqshield.training.run.checkpoint_due"  # the first and the end, then
    monkeypatch.setattr(first, lambda took, since: took == 0.0)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", chosen, progress=Watcher(stop_in=3))
    watcher = Watcher()
    resumed = run(tmp_path / "broken", chosen, progress=watcher)
    assert watcher.resumed == 1
    assert resumed.weights.read_bytes() == unbroken.weights.read_bytes()
    again = Watcher()
    run(tmp_path / "broken", chosen, progress=again)
    assert (again.resumed, again.epochs) == (4, set())


def test_the_written_accuracy_is_that_of_the_written_file(tmp_path):
    result = run(tmp_path, settings(ema=0.5))
    model = load_classifier(result.weights)
    assert accuracy(model, TEST.images, TEST.labels) == result.card["test_accuracy"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ema": 0.9, "cutout": 3},
    ],
)
def test_an_interrupted_run_ends_with_the_very_same_weights(tmp_path, changes):
    chosen = settings(epochs=3, **changes)
    unbroken = run(tmp_path / "unbroken", chosen)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", chosen, progress=Watcher(stop_in=2))
    watcher = Watcher()
    resumed = run(tmp_path / "broken", chosen, progress=watcher)
    assert watcher.resumed == 1
    for name in ("small-cifar10.safetensors", "small-cifar10.checkpoint.safetensors"):
        left, right = load_file(tmp_path / "unbroken" / name), load_file(tmp_path / "broken" / name)
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in left)
    losses = [[epoch["loss"] for epoch in result.card["history"]] for result in (unbroken, resumed)]
    assert losses[0] == losses[1]


def test_seeds_decide_and_the_global_generator_does_not(tmp_path):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = load_file(run(tmp_path / "1", settings()).weights)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = load_file(run(tmp_path / "2", settings()).weights)
    other = load_file(run(tmp_path / "3", settings(seed=1)).weights)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])


def test_a_finished_run_is_not_repeated_unless_asked(tmp_path):
    run(tmp_path, settings())
    watcher = Watcher()
    run(tmp_path, settings(), progress=watcher)
    assert (watcher.resumed, watcher.epochs) == (2, set())
    run(tmp_path, settings(), fresh=True, progress=watcher)
    assert (watcher.resumed, len(watcher.epochs)) == (0, 2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"batch": 32}, "batch=16.*batch=32"),
        ({"epochs": 5}, "epochs=2.*epochs=5"),
        ({"options": {"widths": [4], "blocks": [1]}}, r"options=.*\[4, 6\].*\[4\]"),
    ],
)
def test_another_setting_on_resume_is_named(tmp_path, changes, named):
    run(tmp_path, settings())
    with pytest.raises(InvalidInputError, match=named):
        run(tmp_path, settings(**changes))


def test_other_data_on_resume_are_noticed(tmp_path):
    run(tmp_path, settings())
    with pytest.raises(InvalidInputError, match="data_sha256="):
        train_on(settings(), TEST, TEST, out=tmp_path)


@pytest.fixture
def another_number_of_threads():
    before = torch.get_num_threads()
    yield lambda: torch.set_num_threads(before + 1)
    torch.set_num_threads(before)


def test_another_number_of_threads_on_resume_is_named(tmp_path, another_number_of_threads):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, settings(), progress=Watcher(stop_in=2))
    path, before = tmp_path / "small-cifar10.checkpoint.safetensors", torch.get_num_threads()
    tensors, state = read_checkpoint(path)
    assert state.threads == before
    another_number_of_threads()
    named = f"made with {before} threads, this run has {before + 1}.* resume with OMP_NUM_THREADS={before} "
    with pytest.raises(InvalidInputError, match=named):
        run(tmp_path, settings())
    write_checkpoint(path, tensors, replace(state, threads=None))  # on a GPU, or by an earlier version
    finished = run(tmp_path, settings())
    torch.set_num_threads(before)
    assert run(tmp_path, settings()).weights == finished.weights, "nothing is left to compute"


def test_a_checkpoint_with_the_old_name_of_float32_is_continued(tmp_path):
    run(tmp_path, settings())
    path = tmp_path / "small-cifar10.checkpoint.safetensors"
    tensors, state = read_checkpoint(path)
    write_checkpoint(path, tensors, replace(state, settings={**state.settings, "precision": "fp32"}))
    watcher = Watcher()
    run(tmp_path, settings(), progress=watcher)
    assert (watcher.resumed, watcher.epochs) == (2, set())


@pytest.mark.parametrize("content", [b"", b"not safetensors at all"])
def test_a_broken_checkpoint_is_named(tmp_path, content):
    (tmp_path / "small-cifar10.checkpoint.safetensors").write_bytes(content)
    with pytest.raises(FileFormatError, match="checkpoint"):
        run(tmp_path, settings())


def test_weights_are_no_checkpoint(tmp_path):
    result = run(tmp_path, settings())
    (tmp_path / "small-cifar10.checkpoint.safetensors").write_bytes(result.weights.read_bytes())
    with pytest.raises(FileFormatError, match="not a checkpoint"):
        run(tmp_path, settings())


def test_a_diverging_run_stops_and_says_so(tmp_path):
    with pytest.raises(VqshieldError, match=r"peak_lr=1e\+30"):
        run(tmp_path, settings(peak_lr=1e30, epochs=3))


def test_a_batch_larger_than_the_data_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"batch=65 .* 64"):
        run(tmp_path, settings(batch=65))


def test_bf16_learns_too(tmp_path):
    result = run(tmp_path, settings(epochs=4, precision="bf16"))
    assert result.card["test_accuracy"] >= 0.9


def test_statistics_are_those_of_the_pixels():
    floats = TRAINING.floats()
    mean, std = channel_statistics(TRAINING.images)
    torch.testing.assert_close(torch.tensor(mean), floats.mean((0, 2, 3)), rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.tensor(std), floats.std((0, 2, 3)), rtol=0, atol=1e-4)
    assert min(channel_statistics(torch.zeros(1, 1, 2, 2, dtype=torch.uint8))[1]) > 0


def test_epoch_seeds_never_meet():
    assert len({epoch_seed(seed, epoch) for seed in range(30) for epoch in range(30)}) == 900


@pytest.mark.parametrize("name", ["abacus", "cpu:x"])
def test_an_unknown_device_is_named(name):
    with pytest.raises(InvalidInputError, match=name):
        pick_device(name)
    assert pick_device("auto").type in ("cpu", "cuda")


def test_compiling_is_handed_to_torch_and_changes_nothing_else(tmp_path, monkeypatch):
    modes = []

    def compile_nothing(function, *, mode, dynamic):
        modes.append(mode)
        return function

    monkeypatch.setattr(torch, "compile", compile_nothing)
    compiled = load_file(run(tmp_path / "1", settings(compile_mode="default")).weights)
    plain = load_file(run(tmp_path / "2", settings()).weights)
    assert modes == ["default"]
    assert all(torch.equal(compiled[key], plain[key]) for key in plain)


def test_a_checkpoint_without_some_weight_is_named(tmp_path):
    run(tmp_path, settings())
    path = tmp_path / "small-cifar10.checkpoint.safetensors"
    tensors, state = read_checkpoint(path)
    del tensors["weights"]["network.fc.bias"]
    write_checkpoint(path, tensors, state)
    with pytest.raises(FileFormatError, match=r"network\.fc\.bias"):
        run(tmp_path, settings())


KILLED = """
import os, signal, sys
import torch
sys.path[:0] = {tests!r}
torch.set_num_threads({threads})
from small_runs import TEST, TRAINING, Watcher
from test_trainer import settings, train_on

class Killed(Watcher):
    def stop(self):
        os.kill(os.getpid(), signal.SIGKILL)

for last in (2, 4):
    child = os.fork()
    if child == 0:
        chosen = settings(epochs=4, ema=0.9, cutout=3)
        train_on(chosen, TRAINING, TEST, out={out!r}, progress=Killed(stop_in=last))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""One process imports torch; both that are killed are forks of it."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_killed_twice_and_resumed_the_files_are_byte_for_byte_those_of_an_unbroken_run(tmp_path):
    chosen = settings(epochs=4, ema=0.9, cutout=3)
    unbroken = run(tmp_path / "unbroken", chosen)
    again = run(tmp_path / "again", chosen)
    assert unbroken.weights.read_bytes() == again.weights.read_bytes()
    code = KILLED.format(
        tests=[str(each) for each in Path(__file__).parents[:2]],
        threads=torch.get_num_threads(),
        out=str(tmp_path / "killed"),
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == [str(-signal.SIGKILL)] * 2, done.stderr
    watcher = Watcher()
    resumed = run(tmp_path / "killed", chosen, progress=watcher)
    assert watcher.resumed == 3
    assert resumed.weights.read_bytes() == unbroken.weights.read_bytes()
