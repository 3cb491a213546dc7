"""A shield in front of any LightningModule, put there by a callback."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.defenses import Defense
from vqshield.integrations import require
from vqshield.integrations.shield import Shield

_library = require("lightning.pytorch", "lightning")
_Callback: Any = _library.Callback
_HOOK = _library.LightningDataModule.on_after_batch_transfer

STAGES = ("fit", "validate", "test", "predict")


class ShieldCallback(_Callback):  # type: ignore[misc]
    """Shields the images of each batch after it has reached its device; the module itself stays as it is.

    Images should be in [0, 1]: normalisation belongs into the module.

    Args:
        defense: a spec string, "swrd:size=3", or a Defense.
        seed: the seed of the draws; None takes fresh entropy.
        stages: stages of the trainer; "fit" is training with its validation.
        key: where a batch that is a list, tuple or dictionary holds its images.
    """

    def __init__(
        self,
        defense: str | Defense = "swrd",
        *,
        seed: int | None = None,
        stages: tuple[str, ...] = ("validate", "test", "predict"),
        key: int | str = 0,
    ) -> None:
        super().__init__()
        self.shield = Shield(defense, seed=seed)
        self.stages = tuple(checks.one_of("stages", each, STAGES) for each in stages)
        self.key = key
        self._owner: Any = None

    def setup(self, trainer: Any, pl_module: object, stage: str) -> None:
        """Put the shield behind the module's own hook."""
        if stage not in self.stages:
            return
        # Lightning asks the data module where that has a hook of its own, and the module elsewhere.
        data = trainer.datamodule
        has_own = data is not None and type(data).on_after_batch_transfer is not _HOOK
        self._owner = data if has_own else pl_module
        own: Callable[[object, int], object] = self._owner.on_after_batch_transfer

        def shielded(batch: object, dataloader_idx: int) -> object:
            return self._replaced(own(batch, dataloader_idx))

        self._owner.on_after_batch_transfer = shielded

    def teardown(self, trainer: object, pl_module: object, stage: str) -> None:
        if self._owner is not None:
            vars(self._owner).pop("on_after_batch_transfer", None)
            self._owner = None

    def _replaced(self, batch: object) -> object:
        if isinstance(batch, Tensor):
            return self.shield(batch)
        if isinstance(batch, dict):
            return {**batch, self.key: self.shield(batch[self.key])}
        if (type(batch) is list or type(batch) is tuple) and isinstance(self.key, int):
            parts = list(batch)
            parts[self.key] = self.shield(parts[self.key])
            return type(batch)(parts)
        raise InvalidInputError(
            f"a batch that is a {type(batch).__name__} has no images at key={self.key!r}; it should be a "
            "tensor, list, tuple or dictionary"
        )
