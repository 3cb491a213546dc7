"""Which fakes does the audit catch, by which flag, and does it pass honest models?

Every fake is the classifier with something wrong built in that flatters its robust accuracy, or hides how it
is attacked. Fakes and honest models are judged by the same attacks, on the same images.

    python paper/research/audit_fakes.py [--device cuda] [--images 50]
        [--adversarial FILE] [--hardened FILE --hardened-defense swrd]

The two last honest models are classifiers that were trained for it; without a file they are left out, and a
later run with the file adds them to the others.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vqshield as vq
from common import Target, defense_of, make_parser
from vqshield.auditing import LEAST_IMAGES, QUICK, Flag
from vqshield.core.environment import environment
from vqshield.core.files import parse_json, write_json
from vqshield.core.serialization import from_plain, to_plain
from vqshield.defenses import Defense

Images = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Known:
    """What the author of a fake knows: the classifier, the images of the audit, and the defense."""

    classifier: nn.Module
    images: Tensor
    labels: Tensor
    defense: Defense


class Fake(nn.Module):
    """A classifier with something wrong built in."""

    def __init__(self, known: Known) -> None:
        super().__init__()
        self.inner, self.known = known.classifier, [known]  # in a list: not a part of the model

    def forward(self, images: Tensor) -> Tensor:
        """As the classifier."""
        logits: Tensor = self.inner(images)
        return logits


class Scaled(Fake):
    """Logits times 10⁴: a cross-entropy that is zero, and flat, in single precision."""

    def forward(self, images: Tensor) -> Tensor:
        return 1e4 * super().forward(images)


class Rounded(Fake):
    """Logits in whole numbers: steps without slopes."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).round()


class Detached(Fake):
    """Logits that autograd knows nothing of."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).detach()


class _Changed(torch.autograd.Function):
    """The images, with another gradient."""

    @staticmethod
    def forward(ctx, images: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[no-untyped-def, override]
        ctx.change = change
        return images.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def, override]
        return ctx.change(gradient), None


class RandomGradient(Fake):
    """A gradient that has nothing to do with the answers."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(_Changed.apply(images, torch.randn_like))


class FlippedPixels(Fake):
    """The gradient with the wrong sign in half of the pixels, as on a chequerboard."""

    def forward(self, images: Tensor) -> Tensor:
        rows, columns = (torch.arange(size, device=images.device) for size in images.shape[2:])
        signs = 1 - 2 * ((rows[:, None] + columns) % 2)
        return super().forward(_Changed.apply(images, lambda gradient: gradient * signs))


class FlippedImages(Fake):
    """The gradient with the wrong sign for the darker half of the images."""

    def forward(self, images: Tensor) -> Tensor:
        middle = self.known[0].images.mean((1, 2, 3)).median()
        signs = torch.where(images.detach().mean((1, 2, 3), keepdim=True) < middle, -1.0, 1.0)
        return super().forward(_Changed.apply(images, lambda gradient: gradient * signs))


class OtherWithGradients(Fake):
    """With gradients, logits are those of the next class, so attacks find images that fool that one."""

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        return logits.roll(1, -1) if torch.is_grad_enabled() else logits


class Undo(Fake):
    """Answers for the nearest image that it knows, with the gradient of the one it was given."""

    def __init__(self, known: Known, *, moved: bool = False) -> None:
        super().__init__(known)
        self.moved = moved

    def table(self) -> Tensor:
        images = self.known[0].images
        return torch.cat([images, images.flip(3), images.roll(4, 2)]) if self.moved else images

    def forward(self, images: Tensor) -> Tensor:
        nearest = self.table()[torch.cdist(images.detach().flatten(1), self.table().flatten(1)).argmin(1)]
        logits: Tensor = self.inner(images + (nearest - images).detach())
        return logits


class SoftUndo(Undo):
    """The same with a true gradient: a mixture of known images, nearly all of it the nearest."""

    def forward(self, images: Tensor) -> Tensor:
        table = self.table().flatten(1)
        weights = (-torch.cdist(images.flatten(1), table).square() / 2).softmax(1)
        logits: Tensor = self.inner((weights @ table).view_as(images))
        return logits


class LabelsOfQuantized(Fake):
    """Knows what the defense makes of the images, and the right label of each."""

    def __init__(self, known: Known) -> None:
        super().__init__(known)
        self._quantized = known.defense.reseeded(1)(known.images).flatten(1)

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        nearest = torch.cdist(images.detach().flatten(1), self._quantized).argmin(1)
        return logits + 30 * F.one_hot(self.known[0].labels[nearest], logits.shape[1])


class SoftLabels(Fake):
    """Labels of known images by closeness, smooth, and nothing of the classifier."""

    def forward(self, images: Tensor) -> Tensor:
        known = self.known[0]
        weights = (-torch.cdist(images.flatten(1), known.images.flatten(1)).square()).softmax(1)
        return 10 * weights @ F.one_hot(known.labels, super().forward(images[:1]).shape[1]).to(weights)


class DropoutOn(Fake):
    """torch.nn.functional.dropout of the last features, without its argument `training`: never off."""

    def forward(self, images: Tensor) -> Tensor:
        last = [layer for layer in self.inner.modules() if isinstance(layer, nn.Linear)][-1]
        hook = last.register_forward_pre_hook(lambda _, given: F.dropout(given[0], 0.3))
        try:
            return super().forward(images)
        finally:
            hook.remove()


class SeededByInput(Fake):
    """Noise that the image's own bytes decide: the same question has one answer, the next one another."""

    def forward(self, images: Tensor) -> Tensor:
        seeds = (images.detach().double().sum((1, 2, 3)) * 1e9).long().tolist()
        noise = [
            torch.randn(images.shape[1:], generator=torch.Generator().manual_seed(abs(seed)))
            for seed in seeds
        ]
        return super().forward(images + 0.03 * torch.stack(noise).to(images))


class ByCalls(Fake):
    """Undoes perturbations in its first calls only, or in all but those."""

    def __init__(self, known: Known, *, calls: int, first: bool) -> None:
        super().__init__(known)
        self.undo, self.calls, self.first, self.asked = Undo(known), calls, first, 0

    def forward(self, images: Tensor) -> Tensor:
        self.asked += 1
        logits: Tensor = self.undo(images) if (self.asked <= self.calls) == self.first else self.inner(images)
        return logits


@dataclass(frozen=True)
class Trick:
    """A fake, the flag that detects it, and the start of the name of the number that shows it."""

    make: Callable[[Known], nn.Module]
    flag: str
    figure: str


FAKES: dict[str, Trick] = {
    "logits times 10⁴": Trick(Scaled, "R13", "images without a slope"),
    "rounded logits": Trick(Rounded, "R10", "correlation"),
    "detached logits": Trick(Detached, "R10", "correlation"),
    "random gradients": Trick(RandomGradient, "R10", "correlation"),
    "gradient flipped in half of the pixels": Trick(FlippedPixels, "R10", "correlation"),
    "gradient flipped for half of the images": Trick(FlippedImages, "R10", "signs"),
    "other answers where gradients are on": Trick(
        OtherWithGradients, "R12", "largest change of a probability when gradients"
    ),
    "other answers after 200 calls": Trick(
        partial(ByCalls, calls=200, first=False), "R12", "largest change of a probability after"
    ),
    "strong in the first 200 calls": Trick(
        partial(ByCalls, calls=200, first=True), "R12", "largest change of a probability after"
    ),
    "strong in the first 10⁶ calls": Trick(
        partial(ByCalls, calls=10**6, first=True), "R12", "changed by being asked"
    ),
    "undoes perturbations of known images": Trick(Undo, "R11", "attacked, "),
    "the same, and knows them mirrored and shifted": Trick(partial(Undo, moved=True), "R1", "left at"),
    "the same, softly": Trick(SoftUndo, "R11", "attacked, "),
    "softly, and knows them mirrored and shifted": Trick(
        partial(SoftUndo, moved=True), "R11", "attacked, held out"
    ),
    "labels of known images, softly": Trick(SoftLabels, "R11", "attacked, "),
    "labels of known quantized images": Trick(LabelsOfQuantized, "R11", "attacked, "),
    "dropout left on": Trick(DropoutOn, "R12", "dropout that is on"),
    "noise seeded by the input": Trick(SeededByInput, "R14", "share of the budget"),
}
BEHIND = "swrd"
"""The defense that every fake stands behind."""
STRAIGHT = "pgd:steps=8,eot=2,loss=margin,momentum=0.75,schedule=cosine,step=3/255"
SOFT = f"{STRAIGHT},surrogate=soft"
SETTINGS = replace(QUICK, runs=3, queries=10, draws=16)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One audit.

    Attributes:
        alarms: the flags that failed or are suspicious, with their messages and numbers.
        flag, figure: the flag and number that detect a fake, from its Trick.
    """

    name: str
    honest: bool
    defense: str
    classifier: str
    natural: float
    reported: float
    outcomes: Mapping[str, str]
    alarms: Mapping[str, Flag]
    seconds: float
    flag: str | None = field(default=None, metadata={"omit": True})
    figure: str | None = field(default=None, metadata={"omit": True})


def audited(name: str, model: nn.Module, defense: str, images: Images, held_out: Images, *,
            honest: bool, classifier: str) -> Row:  # fmt: skip
    attack = STRAIGHT if defense.startswith("gaussian") else SOFT
    began = time.perf_counter()
    report = vq.audit(
        model, *images, defense=defense, attacks=attack, settings=replace(SETTINGS, probe=attack),
        held_out=held_out,
    )  # fmt: skip
    return Row(
        name=name, honest=honest, defense=defense, classifier=classifier,
        natural=report.audit.natural.mean, reported=report.audit.reported.mean,
        outcomes={flag.name: flag.outcome for flag in report.flags},
        alarms={flag.name: flag for flag in report.flags if flag.outcome in ("fail", "suspicious")},
        seconds=round(time.perf_counter() - began, 1),
        flag=None if honest else FAKES[name].flag, figure=None if honest else FAKES[name].figure,
    )  # fmt: skip


def main() -> None:
    parser = make_parser(__doc__, "paper/results/audit-fakes.json")
    parser.add_argument("--images", type=int, default=LEAST_IMAGES)
    parser.add_argument("--adversarial", type=Path, help="a classifier that was trained adversarially")
    parser.add_argument("--hardened", type=Path, help="a classifier that was trained behind a defense")
    parser.add_argument("--hardened-defense", default="swrd", help="that defense")
    options = parser.parse_args()
    bare = Target(device=options.device)
    honest = {
        "bare": (bare, "gaussian:sigma=0.0"),
        "Gaussian noise": (bare, "gaussian:sigma=8/255"),
        "swRD": (bare, BEHIND),
    }
    for name, path, defense in (
        ("adversarially trained", options.adversarial, "gaussian:sigma=0.0"),
        ("hardened", options.hardened, options.hardened_defense),
    ):
        if path is not None:
            honest[name] = (Target(classifier=str(path), device=options.device), defense)
    found = {row.name: row for row in kept(options.out)}

    def note(row: Row) -> None:
        found[row.name] = row
        print(f"{row.name}: {', '.join(f'{n} {f.outcome}' for n, f in row.alarms.items())}", flush=True)
        write_json(options.out, to_plain({
            "what": "audits of fakes and of honest models: which flags they raise",
            "data": bare.data, "images": options.images, "attacks": {"gaussian": STRAIGHT, "others": SOFT},
            "settings": SETTINGS, "machine": environment(bare.place), "rows": list(found.values()),
        }))  # fmt: skip

    for name, (target, defense) in honest.items():
        if name not in found:
            images, held_out = parts(target, options.images)
            note(audited(name, target.model, defense, images, held_out, honest=True, classifier=target.name))
    images, held_out = parts(bare, options.images)
    for name, trick in FAKES.items():
        if name not in found:
            known = Known(bare.model, *images, defense_of(BEHIND, seed=0).to(bare.place))
            note(
                audited(name, trick.make(known), BEHIND, images, held_out, honest=False, classifier=bare.name)
            )


def parts(target: Target, count: int) -> tuple[Images, Images]:
    """The images that are judged, and as many that no fake has seen."""
    return target.part(slice(count)), target.part(slice(count, 2 * count))


def kept(path: Path) -> list[Row]:
    """The audits of an earlier run, where the file is there."""
    if not path.is_file():
        return []
    return list(from_plain(tuple[Row, ...], parse_json(path.read_bytes(), path)["rows"], str(path)))


if __name__ == "__main__":
    main()
