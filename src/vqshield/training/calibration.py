"""Calibrate: fit a classifier's batch-norm statistics to the images that a defense makes, without labels."""

import copy
import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vqshield.classifiers import Normalised, as_shown_to, weights_digest
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.progress import Progress, no_progress
from vqshield.core.serialization import Json
from vqshield.core.settings import parse_spec, refuse_unknown
from vqshield.data import list_datasets, load
from vqshield.data.folders import pictures_below
from vqshield.defended import Defended
from vqshield.defenses import Defense, DefenseLike
from vqshield.models.calling import ask_for_logits, own_dtype
from vqshield.training.saving import RunFiles, file_stem
from vqshield.training.shielding import shield_seed
from vqshield.training.subject import IN_MEMORY, Subject, check_unfolded

AUTO, GIVEN = "auto", "unchanged"
REESTIMATE, PAIRED = "reestimate", "paired"
CANDIDATES = (GIVEN, PAIRED, REESTIMATE, f"{PAIRED}:share=0.5", f"{REESTIMATE}:share=0.5")
"""What "auto" chooses from."""
FOLDS, FEW = 4, 512  # up to that many images, each is held back once; of more, the last quarter
USUAL_LIMIT = 1024
ALTERNATIVE = "fine-tune the classifier behind the defense instead (vq.harden, vqshield harden)"


class Statistics(NamedTuple):
    """Mean and variance of each channel, float64."""

    mean: Tensor
    variance: Tensor


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How the statistics of a calibrated classifier were found.

    Attributes:
        method: what was applied: "reestimate", "paired", one of them with a share, or "unchanged", where the
            classifier was kept.
        images, samples, batch, seed: what it was measured with.
        agreement: by candidate, the share of held-back images and samples whose class is the one that the
            bare classifier gives for the clean image; empty unless method="auto" chose.
        log_likelihood: the same by the mean log-probability of that class, which decides.
    """

    method: str
    images: int
    samples: int
    batch: int
    seed: int
    agreement: Mapping[str, float]
    log_likelihood: Mapping[str, float]


class Calibrated(Defended):
    """A calibrated classifier behind its defense: a `Defended` that says how it was calibrated.

    Attributes:
        calibration: the method, the images and, for method="auto", the agreement of each candidate.
        weights, card_file: what was written; None without `out`.
    """

    calibration: Calibration
    weights: Path | None = None
    card_file: Path | None = None


def calibrate(
    model: nn.Module | str,
    images: Tensor | str | Path,
    *,
    defense: DefenseLike | None = None,
    method: str = AUTO,
    samples: int = 1,
    batch: int = 256,
    seed: int = 0,
    split: str = "train",
    limit: int | None = None,
    data_dir: Path | str | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    name: str | None = None,
    progress: Progress = no_progress,
) -> Calibrated:
    """Fit a classifier's batch-norm statistics to the images that a defense makes. Needs no labels.

    A classifier behind a defense sees images whose statistics differ from its training images. Measuring its
    batch-norm statistics again restores most of the clean accuracy in seconds. It does not replace
    fine-tuning (`vq.harden`), and adaptive attacks break a calibrated classifier as well.

    Args:
        model: a defended model, or a classifier with `defense`: a module from images in [0, 1] to logits, or
            a name as for `vq.harden`. The model is not changed.
        images: unlabelled images (N, q, h, w), bytes or floats in [0, 1]; a folder of PNG or JPEG files; or
            the name of a data set. A few hundred of the kind that the model will see; at least 2.
        defense: the defense of a bare classifier: "swrd:size=3,codes=25", "package.module:function", a
            Defense, or a module or function from images to images.
        method: "reestimate": the statistics of the defended images. "paired": the checkpoint's statistics,
            shifted by the difference between the defended and the clean images; better with few images.
            "paired:share=0.5": half of that, half of the checkpoint's. "auto": whichever agrees best with
            the bare classifier on images that are held back; it keeps the classifier where none is better.
        samples: random passes of the defense per image.
        batch: images per forward pass. Every batch is normalized by its own statistics while it is measured.
        seed: seed of the order of the images and of the defense's samples.
        split: split of a named data set: "train" or "test".
        limit: use at most this many images, chosen by the seed (default: 1,024 of a data set or a folder,
            all of a tensor).
        data_dir: folder with the official files of a named data set (default: the cache folder).
        device: "cpu", "cuda" or "auto", for a classifier given by name; a module stays where it is.
        out: folder for NAME.safetensors and its card NAME.json; None: nothing is written.
        name: stem of those files (default: the classifier's name and "-calibrated").
        progress: called with what is being done, the images that are done, and their total.

    Returns:
        The calibrated classifier behind a copy of the defense, in eval mode. `.calibration` holds the method
        that was applied.

    Raises:
        InvalidInputError: no batch norm, folded batch norms, no defense, an unknown method, or fewer than 2
            images.

    Warns:
        UserWarning: method="auto" found nothing better than the statistics that the classifier has.

    Example:
        >>> calibrated = vq.calibrate("small-cifar10", images, defense="swrd", method="paired")
        >>> calibrated.calibration.method, calibrated(images).shape
        ('paired', torch.Size([8, 10]))
    """
    started = time.perf_counter()
    _parsed(method)
    checks.whole("samples", samples, least=1)
    checks.whole("batch", batch, least=2)
    checks.whole("seed", seed, least=0, below=2**64)
    subject = Subject.of(model, defense, device=device)
    classifier, shield, surrogate, source = subject
    if shield is None:
        raise InvalidInputError(
            'a classifier without a defense was given; give defense="swrd:size=3,codes=25", or a model of '
            "vq.defend"
        )
    check_norms(classifier, source)
    data, chosen = _images(images, split, limit, data_dir, seed, classifier)
    work = _Work(classifier, shield, chosen, samples, batch, seed, progress)
    candidates = CANDIDATES if method == AUTO else ()
    work.expect(candidates)
    agreement, likelihood = work.trials(candidates)
    applied = max(candidates, key=likelihood.__getitem__) if candidates else method
    if applied == GIVEN:
        warnings.warn(
            f"no calibration with {len(chosen)} images agrees better with the bare classifier than the "
            f"statistics that it has; it is kept unchanged. Give more images, or {ALTERNATIVE}",
            stacklevel=2,
        )
    work.apply(work.measured(torch.arange(len(chosen))), applied)
    found = Calibrated(work.classifier, copy.deepcopy(shield), surrogate=surrogate).eval()
    found.calibration = Calibration(
        method=applied,
        images=len(chosen),
        samples=samples,
        batch=batch,
        seed=seed,
        agreement={each: round(value, 4) for each, value in agreement.items()},
        log_likelihood={each: round(value, 4) for each, value in likelihood.items()},
    )
    if out is not None:
        facts: dict[str, Json] = {
            "data": data,
            "data_sha256": hashlib.sha256(chosen.contiguous().numpy().data).hexdigest(),
            "shield": shield.spec or repr(shield),
            "classifier": source,
            "classifier_sha256": weights_digest(classifier),
            "calibration": asdict(found.calibration),
        }
        described = {key: str(facts[key]) for key in ("data", "shield")}
        described |= {"seed": str(seed), "calibrated": applied}
        stem = file_stem(name, source, "calibrated")
        files, made = RunFiles(Path(out), stem), found.classifier
        written = made if isinstance(made, Normalised) else Normalised(made, mean=[0], std=[1])
        files.folder.mkdir(parents=True, exist_ok=True)
        files.save(written, described)
        facts["load"] = RunFiles(Path(), stem).how_to_load(source, written)
        where = next(iter(written.state_dict().values())).device
        files.write_card(written, facts, device=where, seconds=time.perf_counter() - started)
        found.weights, found.card_file = files.weights, files.card
    return found


class Norm(NamedTuple):
    """A layer that normalizes by running statistics, and these as it holds them."""

    layer: nn.Module
    mean: Tensor
    variance: Tensor


def batch_norms(classifier: nn.Module) -> dict[str, Norm]:
    """The layers that normalize by running statistics, by name, torchvision's frozen ones included."""
    found = {}
    for name, layer in classifier.named_modules():
        mean, variance = getattr(layer, "running_mean", None), getattr(layer, "running_var", None)
        of_images = isinstance(layer, nn.modules.instancenorm._InstanceNorm)
        if isinstance(mean, Tensor) and isinstance(variance, Tensor) and not of_images:
            found[name] = Norm(layer, mean, variance)
    return found


@torch.no_grad()
def channel_statistics(classifier: nn.Module, batches: Iterable[Tensor]) -> dict[str, Statistics]:
    """Mean and unbiased variance of what reaches every batch norm, over all batches together, by name.

    Every batch is normalized by its own statistics, as in training mode. The classifier's own statistics are
    overwritten: give a copy. Sums are float64, and batches are merged by count, so the result is that of two
    passes over all values.
    """
    found: dict[str, tuple[int, Tensor, Tensor]] = {}  # count, mean, sum of squared deviations

    def before(name: str, norm: Norm) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def measure(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            values = arguments[0]
            dims, count = [0, *range(2, values.dim())], values.numel() // values.shape[1]
            mean = values.sum(dims, dtype=torch.float64) / count
            near = mean.to(torch.promote_types(values.dtype, torch.float32))
            deviations = values - near.view(1, -1, *[1] * (values.dim() - 2))
            squares = deviations.square_().sum(dims, dtype=torch.float64) - count * (mean - near) ** 2
            norm.mean.copy_(mean)
            norm.variance.copy_(squares / count)
            if name in found:
                others, middle, spread = found[name]
                apart, total = mean - middle, others + count
                mean = middle + apart * count / total
                squares = spread + squares + apart**2 * others * count / total
                count = total
            found[name] = count, mean, squares

        return measure

    hooks = [
        norm.layer.register_forward_pre_hook(before(name, norm))
        for name, norm in batch_norms(classifier).items()
    ]
    try:
        for images in batches:
            classifier(images)
    finally:
        for hook in hooks:
            hook.remove()
    return {
        name: Statistics(mean, squares / max(count - 1, 1)) for name, (count, mean, squares) in found.items()
    }


class _Work:
    """The measurements on one classifier, defense and set of images."""

    def __init__(
        self,
        classifier: nn.Module,
        shield: Defense,
        images: Tensor,
        samples: int,
        batch: int,
        seed: int,
        progress: Progress,
    ) -> None:
        self.classifier = copy.deepcopy(classifier).eval()
        self._given = {
            name: Statistics(norm.mean.double(), norm.variance.double())
            for name, norm in batch_norms(self.classifier).items()
        }
        self._images, self._samples, self._batch = images, samples, batch
        first = next(iter(self._given.values())).mean
        self._device = first.device
        self._dtype = own_dtype(classifier, torch.float32)
        self._defense = shield.reseeded(shield_seed(seed, "calibration")).to(self._device)
        self._progress, self._done, self._total = progress, 0, 1

    def expect(self, candidates: Sequence[str]) -> None:
        """Say how many images the classifier will be shown in all."""
        count, each = len(self._images), 1 + self._samples
        self._total = count * each
        if candidates:
            for held, others in self._folds():
                self._total += len(others) * each + len(held) * (1 + self._samples * len(candidates))

    def trials(self, candidates: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
        """How well each candidate agrees with the bare classifier on images that it was not measured on:
        the share of equal classes, and the mean log-probability of the bare classifier's class.
        """
        right: dict[str, list[Tensor]] = {each: [] for each in candidates}
        sure: dict[str, list[Tensor]] = {each: [] for each in candidates}
        for held, others in self._folds() if candidates else ():
            self._restore()
            with torch.no_grad():
                parts = list(self._batches(held))
                expected = [ask_for_logits(self.classifier, self._floats(part)).argmax(1) for part in parts]
            measured = self.measured(others)
            for each in candidates:
                self.apply(measured, each)
                for sample in range(self._samples):
                    for part, classes in zip(parts, expected, strict=True):
                        with torch.no_grad():
                            logits = ask_for_logits(self.classifier, self._shielded(part, sample))
                        right[each].append((logits.argmax(1) == classes).double())
                        sure[each].append(-F.cross_entropy(logits.double(), classes, reduction="none"))
        agreement, likelihood = (
            {each: float(torch.cat(found[each]).mean()) for each in candidates} for found in (right, sure)
        )
        return agreement, likelihood

    def measured(self, numbers: Tensor) -> dict[str, tuple[Statistics, Statistics]]:
        """What every layer is given for the images of these numbers, clean and behind the defense."""
        parts = list(self._batches(numbers))
        clean = channel_statistics(self.classifier, (self._floats(part) for part in parts))
        samples = (self._shielded(part, sample) for sample in range(self._samples) for part in parts)
        shielded = channel_statistics(self.classifier, samples)
        return {name: (clean[name], shielded[name]) for name in shielded}

    def apply(self, measured: Mapping[str, tuple[Statistics, Statistics]], method: str) -> None:
        """Give the classifier the statistics that a method makes of what was measured."""
        self._restore()
        kind, share = _parsed(method)
        norms = batch_norms(self.classifier)
        for name, (before, after) in measured.items() if kind != GIVEN else ():
            norm, given = norms[name], self._given[name]
            if kind == PAIRED:
                eps = getattr(norm.layer, "eps", 1e-5)
                ratio = (given.variance + eps) / (before.variance + eps)
                after = Statistics(
                    given.mean + (after.mean - before.mean) * ratio.sqrt(),
                    ((after.variance + eps) * ratio - eps).clamp(min=0),
                )
            for held, was, now in zip(norm[1:], given, after, strict=True):
                held.copy_(was + share * (now - was))

    def _restore(self) -> None:
        for name, norm in batch_norms(self.classifier).items():
            norm.mean.copy_(self._given[name].mean)
            norm.variance.copy_(self._given[name].variance)

    def _folds(self) -> list[tuple[Tensor, Tensor]]:
        """Images that are held back, and the others: each once where there are few, else a quarter."""
        numbers = torch.arange(len(self._images))
        folds = min(FOLDS, len(numbers))
        pairs = [
            (numbers[numbers % folds == each], numbers[numbers % folds != each]) for each in range(folds)
        ]
        return pairs if len(numbers) <= FEW else pairs[:1]

    def _batches(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """Of one size, or one less: a last batch of few images would be normalized by few."""
        return torch.tensor_split(numbers, math.ceil(len(numbers) / self._batch))

    def _floats(self, numbers: Tensor) -> Tensor:
        part = self._images[numbers].to(self._device)
        self._done += len(numbers)
        self._progress("calibrate", self._done, self._total)
        return (part if part.is_floating_point() else part.float() / 255).to(self._dtype)

    def _shielded(self, numbers: Tensor, sample: int) -> Tensor:
        images = self._floats(numbers)
        streams = numbers.to(self._device) + sample * len(self._images)
        return self._defense(images, streams=streams)


def _parsed(method: str) -> tuple[str, float]:
    """The kind, and which share of the new statistics is taken."""
    if method in (AUTO, GIVEN):
        return method, 0.0
    kind, settings = parse_spec(method)
    checks.one_of("method", kind, [AUTO, REESTIMATE, PAIRED])
    refuse_unknown(kind, settings, ["share"] if kind != AUTO else [])
    return kind, checks.real("share", settings.get("share", 1.0), most=1.0)


def check_norms(classifier: nn.Module, source: str) -> None:
    """Refuse a classifier without batch norms, or with folded ones."""
    check_unfolded(classifier, source)
    if batch_norms(classifier):
        return
    kinds = {type(module).__name__ for module in classifier.modules() if "Norm" in type(module).__name__}
    kept = "no running statistics" if any("BatchNorm" in kind for kind in kinds) else "no batch norm"
    held = f" (it has {', '.join(sorted(kinds - {'Normalised'}))})" if kinds - {"Normalised"} else ""
    raise InvalidInputError(
        f"classifier {source!r} has {kept}{held}, so there is nothing to calibrate; {ALTERNATIVE}. If its "
        "batch norms were folded, give the unfolded weights"
    )


def _images(
    given: Tensor | str | Path,
    split: str,
    limit: int | None,
    folder: Path | str | None,
    seed: int,
    classifier: nn.Module,
) -> tuple[str, Tensor]:
    """Their name, and the images in memory, in an order of the seed, as many as are wanted."""
    if limit is not None:
        checks.whole("limit", limit, least=2)
    order = torch.Generator().manual_seed(seed)
    if isinstance(given, Tensor):
        held = given.detach().cpu()
        if held.dtype != torch.uint8:
            checks.pixel_values(checks.image_batch(held))
        elif held.dim() != 4:
            raise InvalidInputError(f"images of shape {tuple(held.shape)} should be (N, channels, h, w)")
        if len(held) < 2:
            raise _too_few(len(held))
        return IN_MEMORY, held[torch.randperm(len(held), generator=order)[:limit]]
    if given in list_datasets():
        found = load(str(given), split, folder)
    elif Path(given).is_dir():
        found = pictures_below(Path(given))
    else:
        raise InvalidInputError(
            f"images={str(given)!r} is neither a folder nor a data set; give a tensor, a folder of image "
            f"files, or one of {', '.join(list_datasets())}"
        )
    found = as_shown_to(classifier, found)
    if len(found) < 2:
        raise _too_few(len(found))
    return found.name, found.at(torch.randperm(len(found), generator=order)[: limit or USUAL_LIMIT])


def _too_few(count: int) -> InvalidInputError:
    return InvalidInputError(f"{count} image was given to calibrate with; a variance needs at least 2")
