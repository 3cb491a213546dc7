"""An image, a seed and a stream number decide a defense's output, whatever happens around the call.

tests/contracts/test_defense_contract.py varies the batch, its order, the threads of one call, the memory and
the layout; here is what a program does around a call.
"""

import copy
import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import noise_images
from torch import Tensor

import vqshield as vq
from vqshield.attacks import EOT
from vqshield.defenses import Defense, create

COUNT = 6
STREAMS = torch.arange(COUNT) * 7919 + 3
ELSEWHERE = """
import torch
torch.set_num_threads(2)
from test_determinism import digest, made, asked
import vqshield as vq
for name in reversed(vq.list_defenses()):
    print(name, digest(asked(made(name))))
"""


def made(name: str) -> Defense:
    """Small and quick; one that is not random by itself takes what it has."""
    known = vq.defenses.known_settings(name)
    few = {"codes": 5, "iterations": 4, "sigma": 0.05}
    return create(name, seed=11, **{key: value for key, value in few.items() if key in known})


def pictures() -> Tensor:
    return noise_images(COUNT, 3, 12, 10, seed=4)


def asked(defense: Defense) -> Tensor:
    return defense(pictures(), streams=STREAMS)


def digest(values: Tensor) -> str:
    return hashlib.sha256(values.detach().contiguous().numpy().tobytes()).hexdigest()


def after_other_calls(defense: Defense) -> Tensor:
    defense(noise_images(2, 3, 9, 9, seed=5))
    defense(1 - pictures(), streams=STREAMS)
    return asked(defense)


def from_threads(defense: Defense) -> Tensor:
    """Eight at once; all of them have to agree."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: asked(defense), range(8)))
    assert all(torch.equal(each, found[0]) for each in found)
    return found[0]


def in_inference_mode(defense: Defense) -> Tensor:
    with torch.inference_mode():
        return asked(defense).clone()


def with_another_default_dtype(defense: Defense) -> Tensor:
    before, images = torch.get_default_dtype(), pictures()
    torch.set_default_dtype(torch.float64)
    try:
        return defense(images, streams=STREAMS)
    finally:
        torch.set_default_dtype(before)


def with_gradients(defense: Defense) -> Tensor:
    return defense(pictures().requires_grad_(), streams=STREAMS).detach()


WAYS: dict[str, Callable[[Defense], Tensor]] = {
    "after other calls": after_other_calls,
    "from eight threads": from_threads,
    "of a copy": lambda defense: asked(copy.deepcopy(defense)),
    "of a pickled copy": lambda defense: asked(pickle.loads(pickle.dumps(defense))),
    "in training mode": lambda defense: asked(defense.train()),
    "in inference mode": in_inference_mode,
    "with gradients": with_gradients,
    "with another default dtype": with_another_default_dtype,
    "of one that was reseeded": lambda defense: asked(defense.reseeded(99).reseeded(11)),
    "in views of a larger tensor": lambda defense: defense(
        torch.cat([pictures()] * 2)[COUNT:], streams=torch.cat([STREAMS] * 2)[COUNT:]
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_image_seed_and_stream_give_the_same_bits(defense_name: str, way: str) -> None:
    assert torch.equal(WAYS[way](made(defense_name)), asked(made(defense_name)))


def test_another_process_gives_the_same_bits() -> None:
    """With another hash seed, another number of threads, and the defenses made in another order."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], check=True, timeout=120, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONHASHSEED": "77", "PYTHONPATH": path},
    )  # fmt: skip
    found = dict(line.split() for line in done.stdout.splitlines())
    assert found == {name: digest(asked(made(name))) for name in vq.list_defenses()}


def test_draws_at_once_are_those_one_after_the_other(defense_name: str) -> None:
    """EOT's batch of draws, and calls that follow each other, take the same streams."""

    def flat(images: Tensor) -> Tensor:
        return images.flatten(1)

    together = EOT(vq.Defended(flat, made(defense_name)), draws=3)(pictures())
    apart = vq.Defended(flat, made(defense_name))
    assert torch.equal(together, torch.stack([apart(pictures()) for _ in range(3)]))
