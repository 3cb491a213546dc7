import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vqshield.classifiers import load_classifier
from vqshield.core.devices import pick_device
from vqshield.core.errors import FileFormatError, InvalidInputError, VqshieldError
from vqshield.data import ImageSet
from vqshield.training import Lines, TrainSettings, train, train_on
from vqshield.training.checkpoint import Pace, read_checkpoint, write_checkpoint
from vqshield.training.measures import accuracy, channel_statistics
from vqshield.training.trainer import Trainer, epoch_seed

TINY = {"widths": [4, 6], "blocks": [0, 1]}


def settings(**changes):
    tiny = {"data": "cifar10", "arch": "small", "epochs": 2, "batch": 16, "peak_lr": 0.05, "options": TINY}
    return TrainSettings(**{**tiny, "padding": 1, **changes})


def two_tones(count, *, seed, size=8):
    """Dark and bright noise: a task that any network learns at once."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    noise = torch.randint(0, 120, (count, 3, size, size), generator=generator)
    return ImageSet("two-tones", (noise + 130 * labels.view(-1, 1, 1, 1)).byte(), labels, ("dark", "bright"))


TRAINING, TEST = two_tones(64, seed=0), two_tones(32, seed=1)


def run(out, chosen, **more):
    return train_on(chosen, TRAINING, TEST, out=out, **more)


class Watcher:
    """Notes what it is told; stops the run after some epochs as Ctrl-C would."""

    def __init__(self, *, stop_in=None):
        self.stop_in, self.epochs, self.steps, self.done = stop_in, [], [], None

    def start(self, *, epochs, done, steps):
        self.done = done

    def step(self, *, epoch, step, loss):
        self.steps.append((epoch, step))
        if epoch == self.stop_in:
            raise KeyboardInterrupt

    def epoch_end(self, record):
        self.epochs.append(record)


def test_it_learns_and_the_card_tells_how(tmp_path):
    watcher = Watcher()
    result = run(tmp_path, settings(epochs=4), progress=watcher)
    card = json.loads(result.card_file.read_text())
    assert card == result.card
    assert card["test_accuracy"] >= 0.9
    assert [epoch["epoch"] for epoch in card["history"]] == [1, 2, 3, 4]
    assert card["history"][-1]["test_accuracy"] == watcher.epochs[-1].test_accuracy
    assert (card["train_images"], card["test_images"], card["seed"]) == (64, 32, 0)
    assert card["torch"] == torch.__version__
    assert card["network"]["options"]["widths"] == [4, 6]
    assert str(tmp_path) not in result.card_file.read_text()
    assert watcher.steps == [(epoch, 4) for epoch in (1, 2, 3, 4)]


def test_epochs_between_tests_are_not_tested_and_end_with_the_same_weights(tmp_path, capsys):
    tested = run(tmp_path / "always", settings(epochs=5))
    seldom = run(tmp_path / "seldom", settings(epochs=5), test_every=2, progress=Lines())
    seen = [epoch["test_accuracy"] for epoch in tested.card["history"]]
    assert [epoch["test_accuracy"] for epoch in seldom.card["history"]] == [None, seen[1], None, *seen[3:]]
    assert tested.weights.read_bytes() == seldom.weights.read_bytes()
    assert ["test" in line for line in capsys.readouterr().out.splitlines()[1:]] == [False, True] * 2 + [True]
    with pytest.raises(InvalidInputError, match="test_every=0"):
        run(tmp_path / "never", settings(), test_every=0)


def test_checkpoints_that_take_long_are_written_less_often():
    now = 0.0
    pace = Pace(clock=lambda: now)
    assert pace.due  # after the first epoch, whatever it will cost
    with pace.writing():
        now += 1
    assert not pace.due
    now += 19.9
    assert not pace.due
    now += 0.2  # a twentieth of the time since then is the second that writing takes
    assert pace.due
    with pace.writing():
        now += 0.2
    assert pace.due  # as fast as this, after every epoch


def test_a_run_whose_checkpoints_are_not_due_resumes_from_the_last_and_keeps_the_end(tmp_path, monkeypatch):
    chosen = settings(epochs=4)
    unbroken = run(tmp_path / "unbroken", chosen)
    monkeypatch.setattr(Pace, "due", property(lambda pace: pace.took == 0.0))  # the first, and the end
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", chosen, progress=Watcher(stop_in=3))
    watcher = Watcher()
    resumed = run(tmp_path / "broken", chosen, progress=watcher)
    assert watcher.done == 1
    assert resumed.weights.read_bytes() == unbroken.weights.read_bytes()
    again = Watcher()
    run(tmp_path / "broken", chosen, progress=again)
    assert (again.done, again.epochs) == (4, [])


def test_the_written_accuracy_is_that_of_the_written_file(tmp_path):
    result = run(tmp_path, settings(ema=0.5))
    model = load_classifier(result.weights)
    assert accuracy(model, TEST.images, TEST.labels) == result.card["test_accuracy"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ema": 0.9, "cutout": 3},
        {"momentum": 0.0},
        {"optimizer": "adam", "peak_lr": 0.01, "schedule": "cosine", "border": "black"},
        {"schedule": "step", "milestones": (1, 2), "nesterov": False, "decay": "all"},
    ],
)
def test_an_interrupted_run_ends_with_the_very_same_weights(tmp_path, changes):
    chosen = settings(epochs=3, **changes)
    unbroken = run(tmp_path / "unbroken", chosen)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", chosen, progress=Watcher(stop_in=2))
    watcher = Watcher()
    resumed = run(tmp_path / "broken", chosen, progress=watcher)
    assert watcher.done == 1
    for name in ("small-cifar10.safetensors", "small-cifar10.checkpoint.safetensors"):
        left, right = load_file(tmp_path / "unbroken" / name), load_file(tmp_path / "broken" / name)
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in left)
    losses = [[epoch["loss"] for epoch in result.card["history"]] for result in (unbroken, resumed)]
    assert losses[0] == losses[1]


def test_the_optimizer_and_what_decay_pulls_are_those_asked_for(tmp_path):
    adam = Trainer(settings(optimizer="adam"), TRAINING, TEST, torch.device("cpu")).optimizer
    assert isinstance(adam, torch.optim.Adam)
    for decay, expected in (("weights", 0.0), ("all", 5e-4)):
        optimizer = Trainer(settings(decay=decay), TRAINING, TEST, torch.device("cpu")).optimizer
        weights, others = optimizer.param_groups
        assert (weights["weight_decay"], others["weight_decay"]) == (5e-4, expected)
        assert {each.ndim for each in others["params"]} == {1}


def test_without_normalising_the_network_sees_the_pixels_as_they_are(tmp_path):
    plain = load_classifier(run(tmp_path, settings(normalise=False, epochs=1)).weights)
    assert (plain.mean.flatten().tolist(), plain.std.flatten().tolist()) == ([0.0] * 3, [1.0] * 3)


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
    assert (watcher.done, watcher.epochs) == (2, [])
    run(tmp_path, settings(), resume=False, progress=watcher)
    assert (watcher.done, len(watcher.epochs)) == (0, 2)


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
    with pytest.raises(InvalidInputError, match="data with sha256"):
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
    checkpoint = read_checkpoint(path)
    assert checkpoint.threads == before
    another_number_of_threads()
    named = f"made with {before} threads, this run has {before + 1}.* resume with OMP_NUM_THREADS={before} "
    with pytest.raises(InvalidInputError, match=named):
        run(tmp_path, settings())
    write_checkpoint(path, replace(checkpoint, threads=None))  # on a GPU, or by an earlier version
    finished = run(tmp_path, settings())
    torch.set_num_threads(before)
    assert run(tmp_path, settings()).weights == finished.weights, "nothing is left to compute"


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


def test_bf16_and_contiguous_layout_learn_too(tmp_path):
    result = run(tmp_path, settings(epochs=4, precision="bf16", channels_last=False))
    assert result.card["test_accuracy"] >= 0.9


def test_from_a_folder_with_one_line_an_epoch(tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    for name, count in [*((f"data_batch_{i}.bin", 8) for i in range(1, 6)), ("test_batch.bin", 8)]:
        part = two_tones(count, seed=2, size=32)
        rows = torch.cat([part.labels.byte()[:, None], part.images.flatten(1)], dim=1)
        (data / name).write_bytes(rows.numpy().tobytes())
    result = train(settings(padding=4), folder=data, out=tmp_path / "out", progress=Lines())
    assert result.weights == tmp_path / "out" / "small-cifar10.safetensors"
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in printed] == ["2 epochs of 2 steps", "epoch 1/2", "epoch 2/2"]


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
    checkpoint = read_checkpoint(path)
    del checkpoint.tensors["weights"]["network.fc.bias"]
    write_checkpoint(path, checkpoint)
    with pytest.raises(FileFormatError, match=r"network\.fc\.bias"):
        run(tmp_path, settings())


KILLED = """
import os, signal, sys
import torch
sys.path.insert(0, {tests!r})
torch.set_num_threads({threads})
from test_trainer import TEST, TRAINING, Watcher, settings, train_on

class Killed(Watcher):
    def step(self, *, epoch, step, loss):
        if epoch == last:
            os.kill(os.getpid(), signal.SIGKILL)

for last in (2, 4):
    child = os.fork()
    if child == 0:
        train_on(settings(epochs=4, ema=0.9, cutout=3), TRAINING, TEST, out={out!r}, progress=Killed())
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
        tests=str(Path(__file__).parent), threads=torch.get_num_threads(), out=str(tmp_path / "killed")
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == [str(-signal.SIGKILL)] * 2, done.stderr
    watcher = Watcher()
    resumed = run(tmp_path / "killed", chosen, progress=watcher)
    assert watcher.done == 3
    assert resumed.weights.read_bytes() == unbroken.weights.read_bytes()
