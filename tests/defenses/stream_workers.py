"""Run in other processes by test_streams.py, which must be able to import it by name."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import vqshield as vq

IMAGE = torch.full((1, 3, 6, 6), 0.5)


class Drawn(Dataset[Any]):
    """Each item is the stream number that a defense drew for it."""

    def __init__(self, defense: vq.Defense | None, count: int = 6) -> None:
        self.defense, self.count = defense, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.defense is None:  # made in the worker itself
            self.defense = vq.PRD(codes=3, seed=1)
        return take(self.defense)


class Shielded(Drawn):
    """Each item is the same image behind another draw."""

    def __getitem__(self, index: int) -> Tensor:
        return self.defense(IMAGE)[0]


def take(defense: vq.Defense) -> int:
    return int(defense.streams(IMAGE))


def take_many(defense: vq.Defense, count: int) -> list[int]:
    return [take(defense) for _ in range(count)]


def loaded(
    start: str, workers: int, *, epochs: int = 3, made: bool = True, persistent: bool = False
) -> list[int]:
    """The streams of some epochs, and of the main process before and after."""
    chosen = vq.PRD(codes=3, seed=1)
    context = None if workers == 0 else start
    loader = DataLoader(
        Drawn(chosen if made else None), batch_size=None, num_workers=workers,
        multiprocessing_context=context, persistent_workers=persistent,
    )  # fmt: skip
    found = [take(chosen)]
    for _ in range(epochs):
        found += [int(number) for number in loader]
    return [*found, take(chosen)]


def shielded(start: str, workers: int, seed: int | None) -> list[str]:
    """Digests of what a loader's workers make of one image, again and again."""
    loader = DataLoader(
        Shielded(vq.PRD(codes=3, seed=seed)), batch_size=None, num_workers=workers,
        multiprocessing_context=start if workers else None,
    )  # fmt: skip
    return [hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in loader]


def made_here(_: int) -> list[int]:
    """As an executor's worker does: the defense is made where it is used."""
    return take_many(vq.PRD(codes=3, seed=1), 3)


def ranked(rank: int, store: str, folder: str) -> None:
    """One rank of a gloo group of two, which makes its own defense as DDP scripts do."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    defense = vq.PRD(codes=3, seed=1)
    numbers: list[Any] = [None, None]
    torch.distributed.all_gather_object(numbers, take_many(defense, 5))
    if rank == 0:
        Path(folder, "streams.json").write_text(json.dumps(numbers))
    torch.distributed.destroy_process_group()
