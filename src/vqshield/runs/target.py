"""Target: a classifier, and the images that it classifies."""

import copy
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from vqshield.classifiers import (
    BUNDLED,
    Normalised,
    as_shown_to,
    check_classes,
    is_source,
    load_classifier,
    named_defense,
    source_digest,
    weights_digest,
)
from vqshield.classifiers.remote import is_remote, remote_part
from vqshield.classifiers.sources import bundled_file
from vqshield.core import checks
from vqshield.core.display_names import IN_MEMORY
from vqshield.core.environment import pick_device
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import file_sha256
from vqshield.core.seeds import torch_seeded
from vqshield.data import SAMPLE_NAME, ImageSet, list_datasets, load
from vqshield.data.base import check_labels
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.models.calling import ask_for_logits, differ, evaluating, taking

PROBED = 8  # images whose outputs identify a classifier or a defense


@dataclass(frozen=True, kw_only=True)
class DataId:
    """Which images: name, number, a checksum of images and labels, and the number of classes."""

    name: str
    images: int
    sha256: str
    classes: int | None = field(default=None, metadata={"omit": True})


@dataclass(frozen=True, kw_only=True)
class ClassifierId:
    """Which classifier.

    Attributes:
        sha256: of its weight file, or of its weights without a file.
        source: SHA-256 of the source that makes it, for module:function.
        answers: SHA-256 of its outputs for the first images, where no file identifies it: weights alone do
            not determine what a program does with them.
        random: its outputs differ from call to call.
        inside: the defenses that are part of it, and measured with it.
        tuned_behind: the defense in its file that it was fine-tuned behind.
    """

    name: str
    sha256: str
    source: str | None = field(default=None, metadata={"omit": True})
    answers: str | None = field(default=None, metadata={"omit": True})
    random: bool | None = field(default=None, metadata={"omit": True})
    inside: tuple[str, ...] | None = field(default=None, metadata={"omit": True})
    tuned_behind: str | None = field(default=None, metadata={"omit": True})

    @property
    def described(self) -> str:
        return f"{self.name} with its own defense ({', '.join(self.inside)})" if self.inside else self.name


class _FloatSet(ImageSet):
    """Images as floats in [0, 1]: rounding them to bytes would change them."""

    def __post_init__(self) -> None:
        check_labels(self.name, len(self.images), self.labels, self.classes)

    def floats(self, part: slice = slice(None)) -> Tensor:
        return self.images[part]


def answers_vary(model: Callable[[Tensor], Tensor], images: Tensor) -> bool:
    """Whether a model returns something else for the same images in a second call, or with gradients."""
    some = images[:PROBED].detach()
    with torch.no_grad():
        first, again = model(some), model(some)
    with torch.enable_grad():
        with_gradients = model(some.clone().requires_grad_()).detach()
    return differ(first, again) or differ(first, with_gradients)


def answers_digest(answers: Tensor) -> str:
    """SHA-256 of what a model returned for each image, (N, ...), up to rounding errors.

    Each image counts with one random projection to three decimals: errors of single values average out.
    """
    values = answers.detach().double().cpu().flatten(1)
    weights = torch.rand(values.shape[1], generator=torch.Generator().manual_seed(0), dtype=values.dtype)
    sums = values @ weights / math.sqrt(len(weights))
    return hashlib.sha256((1000 * sums).round().to(torch.int64).numpy().tobytes()).hexdigest()


def seeded_answers(model: nn.Module, images: Tensor, *, random: bool) -> str | None:
    """`answers_digest` of a model, of a random one with all generators that vqshield knows seeded; None where
    that does not repeat its outputs, or the model cannot be copied.
    """
    digests = set()
    for _ in range(1 + random):
        try:
            seeded = copy.deepcopy(model) if random else model
        except Exception:  # it may hold a lock, or anything else
            return None
        for module in seeded.modules() if random else ():
            if isinstance(module, Defense):
                module._take_seed(0)
        with torch_seeded(0), torch.no_grad(), evaluating(seeded):
            digests.add(answers_digest(seeded(images)))
    return digests.pop() if len(digests) == 1 else None


def defenses_inside(model: nn.Module | str) -> tuple[str, ...]:
    """The defenses that are part of a model, wherever in it: compiled, wrapped, or in a subclass."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    defenses = [module.defense for module in modules if isinstance(module, Defended)]
    return tuple(defense.spec or type(defense).__name__ for defense in defenses)


def full_path(classifier: str) -> str:
    """A classifier's name; a file's absolute path, as other processes may have another current directory."""
    return classifier if is_source(classifier) else str(Path(classifier).absolute())


def short_name(classifier: str) -> str:
    """A classifier's name; a file's name without its folder."""
    return classifier if is_source(classifier) else Path(classifier).name


_Key = tuple[str, Path | None, str, str]
"""Everything that decides images and model, except the limit."""


class _Loaded:
    """What a target and its copies have loaded so far, by all that decides it; it is not pickled."""

    def __init__(self) -> None:
        self.images: dict[_Key, tuple[ImageSet, int | None]] = {}  # with the limit that they were read to
        self.models: dict[_Key, nn.Module] = {}
        self.random: dict[_Key, bool] = {}

    def __reduce__(self) -> tuple[type["_Loaded"], tuple[()]]:
        return _Loaded, ()


@dataclass(frozen=True, kw_only=True)
class Target:
    """A classifier and images by name, loaded when they are first needed, in any process.

    Image files are cut and resized to the classifier's input once, so that attack and defense work on the
    pixels that its network sees.

    Attributes:
        data: a data set of `vqshield list data`.
        data_dir: folder of its files (default: the cache).
        classifier: a safetensors file, or a source of `vqshield list classifiers`.
        limit: use the first N images (default: all).
        device: "cpu", "cuda", or "auto", the GPU where there is one.
        called: the name of a classifier in memory; tuned_behind: the defense that its file names.
    """

    data: str = SAMPLE_NAME
    data_dir: Path | None = None
    classifier: str = BUNDLED
    limit: int | None = None
    device: str = "auto"
    called: str | None = None
    tuned_behind: str | None = None
    _loaded: _Loaded = field(default_factory=_Loaded, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.limit is not None:
            checks.whole("limit", self.limit, least=1)
        if not self.travels:
            return
        checks.one_of("data", self.data, list_datasets())
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", Path(self.data_dir).absolute())
        object.__setattr__(self, "classifier", full_path(self.classifier))

    @classmethod
    def in_memory(
        cls,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        *,
        limit: int | None = None,
        called: str | None = None,
        tuned_behind: str | None = None,
    ) -> "Target":
        """A target of a module and tensors or arrays: images (N, q, h, w) in [0, 1], labels (N,).

        The module stays on the device of its parameters. It computes in their dtype; its logits become
        float32. `called` is its name in titles (default: its class), `tuned_behind` the defense that its
        file names.
        """
        images = checks.image_batch(checks.as_tensor("images", images))
        checks.pixel_values(images)
        device = str(next((each.device for each in model.parameters()), "cpu"))
        if called is None:
            network = model.network if isinstance(model, Normalised) else model
            called = f"{type(network).__name__}, {IN_MEMORY}"
        target = cls(
            data=IN_MEMORY, classifier=IN_MEMORY, limit=limit, device=device, called=called,
            tuned_behind=tuned_behind,
        )  # fmt: skip
        image = images[:1].to(target.place)
        model = taking(model, image)
        with torch.no_grad(), evaluating(model):
            classes = ask_for_logits(model, image).shape[1]
        names = tuple(map(str, range(classes)))
        held = _FloatSet(IN_MEMORY, images.detach().cpu(), checks.labels(labels), names)
        target._loaded.images[target._key] = held, None
        target._loaded.models[target._key] = model
        return target

    @property
    def travels(self) -> bool:
        """Whether another process can load it from this description."""
        return self.classifier != IN_MEMORY

    @property
    def is_remote(self) -> bool:
        """Whether the classifier is behind HTTP: it has no gradients, and may be random."""
        return is_remote(self.classifier) or (not self.travels and remote_part(self.model) is not None)

    @property
    def place(self) -> torch.device:
        return pick_device(self.device)

    @property
    def images(self) -> ImageSet:
        """The images, with their labels and the names of the classes."""
        images, limit = self._loaded.images.get(self._key, (None, 0))
        if images is None or (limit is not None and (self.limit is None or self.limit > limit)):
            images = as_shown_to(self.model, load(self.data, "test", self.data_dir, limit=self.limit))
            self._loaded.images[self._key] = images, self.limit
        return images.take(self.limit)

    @property
    def model(self) -> nn.Module:
        if self._key not in self._loaded.models:
            if not is_source(self.classifier) and not Path(self.classifier).is_file():
                raise InvalidInputError(
                    f"classifier={self.classifier!r} is not a file; give a safetensors file, timm:NAME, "
                    "torchvision:NAME, module:function, a name from vqshield list classifiers, or "
                    f"{BUNDLED}, the bundled one"
                )
            self._loaded.models[self._key] = model = load_classifier(self.classifier, device=self.place)
            if (remote := remote_part(model)) is not None:
                remote.classes = remote.endpoint.classes or len(self.images.classes)
        return self._loaded.models[self._key]

    @property
    def name(self) -> str:
        return self.called or short_name(self.classifier)

    @property
    def data_id(self) -> DataId:
        images = self.images
        return DataId(
            name=images.name, images=len(images), sha256=images.digest(), classes=len(images.classes)
        )

    @property
    def classifier_id(self) -> ClassifierId:
        """Which weights these are: the checksum is the file's where there is one, so it is easy to check."""
        source, answers, random = None, None, self.is_random
        if self.classifier == BUNDLED:
            with bundled_file(BUNDLED) as path:
                digest = file_sha256(path)
        elif self.travels and not is_source(self.classifier):
            digest = file_sha256(Path(self.classifier))
        elif (remote := remote_part(self.model)) is not None:
            digest = hashlib.sha256(remote.endpoint.address.encode()).hexdigest()
        else:
            digest, source = weights_digest(self.model), source_digest(self.classifier)
            answers = seeded_answers(self.model, self.part(range(PROBED))[0], random=random)
        return ClassifierId(
            name=self.name,
            sha256=digest,
            source=source,
            answers=answers,
            random=random or None,
            inside=defenses_inside(self.model) or None,
            tuned_behind=named_defense(self.classifier) if self.travels else self.tuned_behind,
        )

    @property
    def is_random(self) -> bool:
        if (remote := remote_part(self.model)) is not None:
            return not remote.endpoint.fixed
        known = self._loaded.random
        if self._key not in known:
            with evaluating(self.model):
                known[self._key] = answers_vary(self.model, self.part(range(PROBED))[0])
        return known[self._key]

    def part(self, images: range | slice) -> tuple[Tensor, Tensor]:
        """Some images as floats and their labels, on the device."""
        part, held = slice(images.start, images.stop), self.images
        return held.floats(part).to(self.place), held.labels[part].to(self.place)

    def check(self) -> None:
        """Refuse a classifier that does not take these images, or has another number of classes."""
        check_classes(self.model, self.name, self.images, self.place)

    @property
    def _key(self) -> _Key:
        return self.data, self.data_dir, self.classifier, self.device
