"""The audit of a target, by name or in memory: the call behind `vq.audit` and `vqshield audit`."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor, nn

from vqshield.auditing import QUICK, AuditReport, AuditSettings, check_audit, run_audit
from vqshield.classifiers import BUNDLED
from vqshield.data import SAMPLE_NAME
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.errors import InvalidInputError
from vqshield.studies.asked import target_from


def audit(
    model: nn.Module | str = BUNDLED,
    images: Tensor | str = SAMPLE_NAME,
    labels: Tensor | None = None,
    *,
    defense: str | Defense | None = None,
    attacks: str | Sequence[str] | None = None,
    norm: str = "linf",
    eps: float = 8 / 255,
    quick: bool = True,
    settings: AuditSettings | None = None,
    seed: int = 0,
    limit: int | None = None,
    data_dir: Path | str | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    progress: Callable[[str], None] | None = None,
    held_out: tuple[Tensor, Tensor] | None = None,
) -> AuditReport:
    """Can the robust accuracy that attacks report for a defended classifier be believed?

    Args:
        model: a module from images in [0, 1] to logits, a model that `vq.defend` made, or the name of a
            classifier, as for `vq.evaluate`.
        images: (N, channels, height, width) in [0, 1], or the name of a data set.
        labels: (N,), the true classes; none where images is the name of a data set.
        defense: what stands in front of the classifier, "swrd:size=3,codes=25" or an object. Without it, the
            defense that the model has, else "swrd". Every draw comes from the audit's seed, not from its own.
        attacks: the attacks whose result is judged, as for `vq.evaluate`; without any, the adaptive suite.
        norm: the norm of the attacks' budget, "linf" or "l2".
        eps: the attacks' budget, in units of [0, 1].
        quick: fewer draws and steps, for a CPU.
        settings: how thorough, in full; then quick does not matter.
        seed: decides every draw.
        limit: the first images alone.
        data_dir: where the files of a data set are; without it, the cache folder.
        device: "cpu", "cuda" or "auto", for a classifier given by name; a module stays where it is.
        out: a folder for audit.json and for all that is measured on the way; an audit that was stopped
            continues there. Without it, nothing is written.
        progress: called with the name of each part that is about to be measured.
        held_out: images and labels that whoever made the model has not seen: a model that knows the others by
            heart does worse on these.

    Returns:
        The report: its flags with outcomes, figures and meanings, and everything it was made with.

    Raises:
        InvalidInputError: something given is wrong, or the folder holds another audit.

    Example:
        >>> few = vq.auditing.AuditSettings(runs=2, queries=2, directions=1, draws=4, probe="pgd:steps=1")
        >>> report = vq.audit(classifier, images[:2], labels[:2], attacks="pgd:steps=1", settings=few)
        >>> report.passed  # two images show nothing
        False
        >>> [flag.name for flag in report.flags][:3]
        ['R1', 'R2', 'R3']
    """
    shield: str | Defense = "swrd" if defense is None else defense
    if isinstance(model, Defended):
        if defense is not None:
            raise InvalidInputError("the model has a defense already; give a bare classifier, or no defense")
        shield = model.defense
        model = model.classifier
    chosen = dataclasses.replace(settings or (QUICK if quick else AuditSettings()), seed=seed)
    if attacks is None:
        attacks = "adaptive-v1-quick" if quick else "adaptive-v1"
    given = (attacks,) if isinstance(attacks, str) else tuple(attacks)
    check_audit(shield, given, norm=norm, eps=eps)  # before anything is loaded
    target = target_from(model, images, labels, limit=limit, data_dir=data_dir, device=device)
    target.check()
    pictures, true = target.part(slice(None))
    data, classifier = target.data_id, target.classifier_id
    unseen = None if held_out is None else (held_out[0].to(pictures.device), held_out[1].to(true.device))
    return run_audit(
        target.model, shield, pictures, true, attacks=given, norm=norm, eps=eps, settings=chosen,
        out=None if out is None else Path(out), progress=progress, data=data.name, data_sha256=data.sha256,
        classifier=classifier.name, classifier_sha256=classifier.sha256, held_out=unseen,
    )  # fmt: skip
