"""Calibrate: fit a classifier's batch-norm statistics to the images that a defense makes, without labels."""

import copy
import hashlib
import math
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
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
from vqshield.reports.table import Column, Table, Tabular
from vqshield.training.run import RunFiles
from vqshield.training.shielding import shield_seed
from vqshield.training.subject import IN_MEMORY, check_unfolded, file_stem, resolve

AUTO, GIVEN = "auto", "unchanged"
REESTIMATE, PAIRED = "reestimate", "paired"
CANDIDATES = (GIVEN, PAIRED, REESTIMATE, f"{PAIRED}:share=0.5", f"{REESTIMATE}:share=0.5")
"""What "auto" chooses from."""
FOLDS, FEW = 4, 512  # up to 512 images, each is held back once; of more, a quarter
USUAL_LIMIT = 1024
ALTERNATIVE = "fine-tune the classifier behind the defense instead (vq.harden, vqshield harden)"


class Statistics(NamedTuple):
    """Mean and variance of each channel, float64."""

    mean: Tensor
    variance: Tensor


@dataclass(frozen=True, kw_only=True)
class Calibration(Tabular):
    """How the statistics of a calibrated classifier were found.

    Attributes:
        method: what was applied: "reestimate", "paired", one of them with a share, or "unchanged".
        images, samples, batch, seed: settings of the measurement.
        agreement: by candidate, the share of held-back images and samples with the class that the bare
            classifier predicts for the clean image; empty unless method="auto" chose.
        log_likelihood: by candidate, the mean log-probability of that class, which decides.
    """

    method: str
    images: int
    samples: int
    batch: int
    seed: int
    agreement: Mapping[str, float] = field(default_factory=dict)
    log_likelihood: Mapping[str, float] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        """A row per candidate, or for the method alone where it was given."""
        names = list(self.agreement) or [self.method]
        return Table(
            title=f"Calibration by {self.method}",
            columns=[
                Column("method", "method"),
                Column("agreement", "agreement in %", "percent"),
                Column("log_likelihood", "log-likelihood", "number"),
            ],
            rows=[[name, self.agreement.get(name), self.log_likelihood.get(name)] for name in names],
            caption=f"{self.images} images; samples: {self.samples}; seed {self.seed}",
            missing="not measured",
        )


class Calibrated(Defended):
    """A calibrated classifier behind its defense: a `Defended` that says how it was calibrated.

    Attributes:
        calibration: the method, the images and, for method="auto", the agreement of each candidate.
        weights, card_file: paths of the files; None without `out`.
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
            the bare classifier on held-back images; it keeps the classifier where none is better.
        samples: random passes of the defense per image.
        batch: images per forward pass. Every batch is normalized by its own statistics while it is measured.
        seed: seed of the order of the images and of the defense's samples.
        split: split of a named data set: "train" or "test".
        limit: use at most N images, chosen by the seed (default: 1,024; all of a tensor).
        data_dir: folder with the official files of a named data set (default: the cache folder).
        device: "cpu", "cuda" or "auto", for a classifier given by name; a module stays where it is.
        out: folder for NAME.safetensors and its card NAME.json; None: write nothing.
        name: stem of those files (default: the classifier's name and "-calibrated").
        progress: called with what is being done, the images that are done, and their total.

    Returns:
        The calibrated classifier behind a copy of the defense, in eval mode, with its `.calibration`.

    Raises:
        InvalidInputError: no batch norm, folded ones, no defense, an unknown method, fewer than 2 images.

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
    subject = resolve(model, defense, device=device)
    shield = subject.defense
    if shield is None:
        raise InvalidInputError(
            'the classifier has no defense; give defense="swrd:size=3,codes=25", or a model of vq.defend'
        )
    check_norms(subject.classifier, subject.name)
    data, pixels = _images(images, split, limit, data_dir, seed, subject.classifier)
    plan = Calibration(method=method, images=len(pixels), samples=samples, batch=batch, seed=seed)
    work = _Measurement(subject.classifier, shield, pixels, plan, progress)
    if method == AUTO:
        plan = work.best()
    if plan.method == GIVEN:
        warnings.warn(
            f"no calibration with {len(pixels)} images agrees better with the bare classifier than the "
            f"statistics that it has; it is kept unchanged. Give more images, or {ALTERNATIVE}",
            stacklevel=2,
        )
    work.apply(work.measured(torch.arange(len(pixels))), plan.method)
    calibrated = Calibrated(work.classifier, copy.deepcopy(shield), surrogate=subject.surrogate).eval()
    calibrated.calibration = plan
    if out is not None:
        facts: dict[str, Json] = {
            "data": data,
            "data_sha256": hashlib.sha256(pixels.contiguous().numpy().data).hexdigest(),
            "shield": shield.spec or repr(shield),
            "classifier": subject.name,
            "classifier_sha256": weights_digest(subject.classifier),
            "calibration": asdict(plan),
        }
        files = RunFiles(Path(out), file_stem(name, subject.name, "calibrated"))
        _write(calibrated, files, facts, time.perf_counter() - started)
    return calibrated


def _write(calibrated: Calibrated, files: RunFiles, facts: dict[str, Json], seconds: float) -> None:
    network, calibration = calibrated.classifier, calibrated.calibration
    model = network if isinstance(network, Normalised) else Normalised(network, mean=[0], std=[1])
    metadata = {key: str(facts[key]) for key in ("data", "shield")}
    files.folder.mkdir(parents=True, exist_ok=True)
    files.save(model, {**metadata, "seed": str(calibration.seed), "calibrated": calibration.method})
    facts["load"] = RunFiles(Path(), files.stem).how_to_load(str(facts["classifier"]), model)
    device = next(iter(model.state_dict().values())).device
    files.write_card(model, facts, device=device, seconds=seconds)
    calibrated.weights, calibrated.card_file = files.weights, files.card


def batch_norms(classifier: nn.Module) -> dict[str, nn.Module]:
    """The layers that normalize by running statistics, by name, torchvision's frozen ones included."""
    return {
        name: layer
        for name, layer in classifier.named_modules()
        if isinstance(getattr(layer, "running_mean", None), Tensor)
        and isinstance(getattr(layer, "running_var", None), Tensor)
        and not isinstance(layer, nn.modules.instancenorm._InstanceNorm)
    }


def _statistics(layer: nn.Module) -> Statistics:
    """The running statistics of a layer, as the tensors that it holds."""
    assert isinstance(layer.running_mean, Tensor)
    assert isinstance(layer.running_var, Tensor)
    return Statistics(layer.running_mean, layer.running_var)


def _assign(layer: nn.Module, mean: Tensor, variance: Tensor) -> None:
    statistics = _statistics(layer)
    statistics.mean.copy_(mean)
    statistics.variance.copy_(variance)


@torch.no_grad()
def channel_statistics(classifier: nn.Module, batches: Iterable[Tensor]) -> dict[str, Statistics]:
    """Mean and unbiased variance of the inputs of every batch norm, over all batches together, by name.

    Every batch is normalized by its own statistics, as in training mode. The classifier's own statistics are
    overwritten: give a copy. Sums are float64, and batches are merged by count, so the result is that of two
    passes over all values.
    """
    merged: dict[str, tuple[int, Tensor, Tensor]] = {}  # count, mean, sum of squared deviations

    def measure(name: str, layer: nn.Module, values: Tensor) -> None:
        dims, count = [0, *range(2, values.dim())], values.numel() // values.shape[1]
        mean = values.sum(dims, dtype=torch.float64) / count
        near = mean.to(torch.promote_types(values.dtype, torch.float32))
        deviations = values - near.view(1, -1, *[1] * (values.dim() - 2))
        squares = deviations.square_().sum(dims, dtype=torch.float64) - count * (mean - near) ** 2
        _assign(layer, mean, squares / count)
        if name in merged:
            earlier, earlier_mean, earlier_squares = merged[name]
            difference, total = mean - earlier_mean, earlier + count
            mean = earlier_mean + difference * count / total
            squares = earlier_squares + squares + difference**2 * earlier * count / total
            count = total
        merged[name] = count, mean, squares

    hooks = [
        layer.register_forward_pre_hook(lambda layer, inputs, name=name: measure(name, layer, inputs[0]))
        for name, layer in batch_norms(classifier).items()
    ]
    try:
        for images in batches:
            classifier(images)
    finally:
        for hook in hooks:
            hook.remove()
    return {
        name: Statistics(mean, squares / max(count - 1, 1)) for name, (count, mean, squares) in merged.items()
    }


class _Measurement:
    """The measurements on one classifier, defense and set of images, and what candidates make of them."""

    def __init__(
        self, classifier: nn.Module, shield: Defense, images: Tensor, plan: Calibration, progress: Progress
    ) -> None:
        self.classifier = copy.deepcopy(classifier).eval()
        self._norms = batch_norms(self.classifier)
        self._original = {
            name: Statistics(*(values.double() for values in _statistics(layer)))
            for name, layer in self._norms.items()
        }
        self._images, self._plan = images, plan
        self._device = next(iter(self._original.values())).mean.device
        self._dtype = own_dtype(classifier, torch.float32)
        self._defense = shield.reseeded(shield_seed(plan.seed, "calibration")).to(self._device)
        self._folds = _folds(len(images)) if plan.method == AUTO else []
        self._progress, self._done = progress, 0
        self._total = plan.images * (1 + plan.samples) + sum(
            len(others) * (1 + plan.samples) + len(held_back) * (1 + plan.samples * len(CANDIDATES))
            for held_back, others in self._folds
        )

    @torch.no_grad()
    def best(self) -> Calibration:
        """The candidate that agrees best with the bare classifier on images that it was not measured on."""
        hits: dict[str, list[Tensor]] = {candidate: [] for candidate in CANDIDATES}
        logs: dict[str, list[Tensor]] = {candidate: [] for candidate in CANDIDATES}
        for held_back, others in self._folds:
            self._restore()
            parts = self._batches(held_back)
            expected = [ask_for_logits(self.classifier, self._floats(part)).argmax(1) for part in parts]
            measured = self.measured(others)
            for candidate in CANDIDATES:
                self.apply(measured, candidate)
                for sample in range(self._plan.samples):
                    for part, classes in zip(parts, expected, strict=True):
                        logits = ask_for_logits(self.classifier, self._shielded(part, sample))
                        hits[candidate].append((logits.argmax(1) == classes).double())
                        logs[candidate].append(-F.cross_entropy(logits.double(), classes, reduction="none"))
        agreement, likelihood = (
            {candidate: float(torch.cat(values).mean()) for candidate, values in results.items()}
            for results in (hits, logs)
        )
        return replace(
            self._plan,
            method=max(CANDIDATES, key=likelihood.__getitem__),
            agreement={candidate: round(value, 4) for candidate, value in agreement.items()},
            log_likelihood={candidate: round(value, 4) for candidate, value in likelihood.items()},
        )

    def measured(self, numbers: Tensor) -> dict[str, tuple[Statistics, Statistics]]:
        """The statistics of every layer's inputs for the images of these numbers: clean, and defended."""
        parts = self._batches(numbers)
        clean = channel_statistics(self.classifier, (self._floats(part) for part in parts))
        samples = (self._shielded(part, sample) for sample in range(self._plan.samples) for part in parts)
        shielded = channel_statistics(self.classifier, samples)
        return {name: (clean[name], shielded[name]) for name in shielded}

    @torch.no_grad()
    def apply(self, measured: Mapping[str, tuple[Statistics, Statistics]], method: str) -> None:
        self._restore()
        kind, share = _parsed(method)
        for name, (clean, defended) in measured.items() if kind != GIVEN else ():
            layer, original, after = self._norms[name], self._original[name], defended
            if kind == PAIRED:
                eps = getattr(layer, "eps", 1e-5)
                ratio = (original.variance + eps) / (clean.variance + eps)
                after = Statistics(
                    original.mean + (defended.mean - clean.mean) * ratio.sqrt(),
                    ((defended.variance + eps) * ratio - eps).clamp(min=0),
                )
            _assign(layer, *(was + share * (now - was) for was, now in zip(original, after, strict=True)))

    def _restore(self) -> None:
        for name, layer in self._norms.items():
            _assign(layer, *self._original[name])

    def _batches(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """Of equal size up to one image: statistics of a last batch with few images would be poor."""
        return torch.tensor_split(numbers, math.ceil(len(numbers) / self._plan.batch))

    def _floats(self, numbers: Tensor) -> Tensor:
        part = self._images[numbers].to(self._device)
        self._done += len(numbers)
        self._progress("calibrate", self._done, self._total)
        return (part if part.is_floating_point() else part.float() / 255).to(self._dtype)

    def _shielded(self, numbers: Tensor, sample: int) -> Tensor:
        images = self._floats(numbers)
        streams = numbers.to(self._device) + sample * len(self._images)
        return self._defense(images, streams=streams)


def _folds(count: int) -> list[tuple[Tensor, Tensor]]:
    """Pairs of images, by number: held back, and the others. A few images are all held back once."""
    numbers, folds = torch.arange(count), min(FOLDS, count)
    pairs = [(numbers[numbers % folds == fold], numbers[numbers % folds != fold]) for fold in range(folds)]
    return pairs if count <= FEW else pairs[:1]


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
    lacks = "no running statistics" if any("BatchNorm" in kind for kind in kinds) else "no batch norm"
    norms = ", ".join(sorted(kinds - {"Normalised"}))
    has = f" (it has {norms})" if norms else ""
    raise InvalidInputError(
        f"classifier {source!r} has {lacks}{has}, so there is nothing to calibrate; {ALTERNATIVE}. If its "
        "batch norms were folded, give the unfolded weights"
    )


def _images(
    source: Tensor | str | Path,
    split: str,
    limit: int | None,
    folder: Path | str | None,
    seed: int,
    classifier: nn.Module,
) -> tuple[str, Tensor]:
    """The data's name, and at most ``limit`` images in memory, in an order of the seed."""
    if limit is not None:
        checks.whole("limit", limit, least=2)
    if isinstance(source, Tensor):
        images = source.detach().cpu()
        if images.dtype != torch.uint8:
            checks.pixel_values(checks.image_batch(images))
        elif images.dim() != 4:
            raise InvalidInputError(f"images of shape {tuple(images.shape)} should be (N, channels, h, w)")
        return IN_MEMORY, images[_order(len(images), seed)[:limit]]
    if source in list_datasets():
        data = load(str(source), split, folder)
    elif Path(source).is_dir():
        data = pictures_below(Path(source))
    else:
        raise InvalidInputError(
            f"images={str(source)!r} is neither a folder nor a data set; give a tensor, a folder of image "
            f"files, or one of {', '.join(list_datasets())}"
        )
    data = as_shown_to(classifier, data)
    return data.name, data.at(_order(len(data), seed)[: limit or USUAL_LIMIT])


def _order(count: int, seed: int) -> Tensor:
    """The order in which the images are taken."""
    if count < 2:
        raise InvalidInputError(f"{count} image was given to calibrate with; a variance needs at least 2")
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
