"""Who is measured: this library's backends, plain torch, and other libraries' k-means.

The others get what makes them fast and equal: a given start, ten iterations, no restarts. They are imported
only when they are measured. Most take one image's patches at a time: a batch is a loop, and the conversion
to their arrays is not timed.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.quantization import kernels as clustering
from vqshield_paper.speed import plain_torch
from vqshield_paper.speed.lloyd import lloyd
from vqshield_paper.speed.timing import reason
from vqshield_paper.speed.workloads import Problem, Workload, streams

Call = Callable[[], Tensor]
"""What is timed."""


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One implementation of k-means, and perhaps of the whole defense.

    kmeans, defense: do what is not timed (imports, conversions, numbers of threads) and return the call that
        is: of (problem, threads), returning centres (B, k, d), and of (workload, images, settings), returning
        the shielded images.
    defense_settings: names in workloads.SETTINGS that `defense` is measured with.
    backend: the name in vqshield.quantization.kernels, for one of ours.
    package: what must be installed, for another.
    one_by_one: it takes a single image's patches, so that many images are a loop.
    about: what a reader must know about the comparison.
    """

    name: str
    kmeans: Callable[[Problem, int], Call]
    defense: Callable[[Workload, Tensor, str], Call] | None = None
    defense_settings: tuple[str, ...] = ()
    backend: str | None = None
    package: str | None = None
    devices: tuple[str, ...] = ("cpu",)
    one_by_one: bool = False
    about: str = ""

    @property
    def ours(self) -> bool:
        """Whether it is this library's."""
        return self.backend is not None

    def missing(self, device: torch.device) -> str | None:
        """Why it cannot run there; None if it can."""
        if self.backend is not None:
            try:
                clustering.get(self.backend, device)
            except InvalidInputError as error:
                return str(error)
            return None
        if device.type not in self.devices:
            return f"runs on {' and '.join(self.devices)} alone"
        if self.package is not None:
            try:
                import_module(self.package)
            except ImportError as error:
                return f"not installed: {reason(error)}"
        return None


def _ours(name: str) -> Implementation:
    """One of this library's backends: plain k-means, and the whole defense as a user calls it."""

    def kmeans(problem: Problem, threads: int) -> Call:
        backend = clustering.get(name, problem.patches.device)
        return lambda: lloyd(backend, problem.patches, problem.start, iterations=problem.iterations)

    def defense(workload: Workload, images: Tensor, settings: str) -> Call:
        shield = workload.shield(settings, backend=name)
        numbers = streams(len(images), images.device)
        return lambda: shield(images, streams=numbers)

    return Implementation(
        name=f"vqshield-{name}",
        kmeans=kmeans,
        defense=defense,
        defense_settings=("ten", "default"),
        backend=name,
    )


def _plain(name: str, prepare: plain_torch.Prepare, about: str) -> Implementation:
    return Implementation(
        name=name,
        kmeans=lambda problem, threads: plain_torch.kmeans(prepare, problem),
        defense=lambda workload, images, settings: plain_torch.defense(prepare, workload, images),
        defense_settings=("ten",),
        devices=("cpu", "cuda"),
        about=about,
    )


def _loop(problem: Problem, one: Callable[[Any, Any], Any], starts: Tensor | None = None) -> Call:
    """A call that gives `one` the patches and the start of every image in turn, as numpy arrays."""
    given = problem.patches, problem.start if starts is None else starts
    patches, begun = ([np.ascontiguousarray(each) for each in tensors.numpy()] for tensors in given)

    def call() -> Tensor:
        with warnings.catch_warnings(action="ignore"):  # about empty clusters, or iterations that ran out
            return torch.from_numpy(np.stack([one(*each) for each in zip(patches, begun, strict=True)]))

    return call


def _scikit_learn(problem: Problem, threads: int) -> Call:
    cluster, sklearn = import_module("sklearn.cluster"), import_module("sklearn")

    def one(patches: Any, start: Any) -> Any:
        model = cluster.KMeans(len(start), init=start, n_init=1, max_iter=problem.iterations, tol=0)
        return model.fit(patches).cluster_centers_

    loop = _loop(problem, one)

    def call() -> Tensor:
        with sklearn.config_context(assume_finite=True):
            return loop()

    return call


def _scipy(problem: Problem, threads: int) -> Call:
    vq = import_module("scipy.cluster.vq")
    settings = {"iter": problem.iterations, "minit": "matrix", "check_finite": False}
    return _loop(problem, lambda patches, start: vq.kmeans2(patches, start, **settings)[0])


def _faiss(problem: Problem, threads: int) -> Call:
    faiss = import_module("faiss")
    faiss.omp_set_num_threads(threads)
    count, dimensions = problem.patches.shape[1:]
    limits = {"min_points_per_centroid": 1, "max_points_per_centroid": count}

    def one(patches: Any, start: Any) -> Any:
        model = faiss.Kmeans(dimensions, len(start), niter=problem.iterations, **limits)
        model.train(patches, init_centroids=start)
        return model.centroids

    return _loop(problem, one)


def _opencv(problem: Problem, threads: int) -> Call:
    """It takes no centres to start from, only labels."""
    cv2 = import_module("cv2")
    cv2.setNumThreads(threads)
    codes = problem.start.shape[1]
    # Its first round makes centres of the given labels: with ten rounds, ten updates, as everywhere.
    criteria = (cv2.TERM_CRITERIA_MAX_ITER + cv2.TERM_CRITERIA_EPS, problem.iterations, 0.0)
    labels = plain_torch.assign(problem.patches, problem.start).int()[..., None]

    def one(patches: Any, start: Any) -> Any:
        # It writes its own labels over those it is given.
        return cv2.kmeans(patches, codes, start.copy(), criteria, 1, cv2.KMEANS_USE_INITIAL_LABELS)[2]

    return _loop(problem, one, labels)


def _fast_pytorch_kmeans(problem: Problem, threads: int) -> Call:
    library = import_module("fast_pytorch_kmeans")
    codes = problem.start.shape[1]

    def one(patches: Tensor, start: Tensor) -> Tensor:
        model = library.KMeans(codes, max_iter=problem.iterations, tol=0)
        model.fit_predict(patches, start)
        centres: Tensor = model.centroids
        return centres

    return lambda: torch.stack(
        [one(patches, start) for patches, start in zip(problem.patches, problem.start, strict=True)]
    )


def _flash_kmeans(problem: Problem, threads: int) -> Call:
    library = import_module("flash_kmeans")
    codes = problem.start.shape[1]

    def call() -> Tensor:
        centres: Tensor = library.batch_kmeans_Euclid(
            problem.patches, codes, max_iters=problem.iterations, tol=0.0, init_centroids=problem.start
        )[1]
        return centres

    return call


_one_by_one = partial(Implementation, one_by_one=True)

# Ours first, the fastest on top. A new implementation: one function above, one entry here.
_IMPLEMENTATIONS = {
    each.name: each
    for each in (
        _ours("native"),
        _ours("gpu"),
        _ours("torch"),
        _plain(
            "torch-eager",
            plain_torch.eager,
            "plain float32 torch, the fastest form found; the defense draws with torch.randn",
        ),
        _plain(
            "torch-compile",
            plain_torch.compiled,
            "torch-eager through torch.compile, for the very shapes; compiling is not timed",
        ),
        _one_by_one(
            name="scikit-learn",
            kmeans=_scikit_learn,
            package="sklearn",
            about="KMeans(algorithm='lloyd', init=array, n_init=1, tol=0); stops once no label changes",
        ),
        _one_by_one(
            name="scipy",
            kmeans=_scipy,
            package="scipy",
            about="kmeans2(minit='matrix', check_finite=False)",
        ),
        _one_by_one(
            name="faiss-cpu",
            kmeans=_faiss,
            package="faiss",
            about="Kmeans with init_centroids and no subsampling; splits a large cluster where one is empty",
        ),
        _one_by_one(
            name="opencv",
            kmeans=_opencv,
            package="cv2",
            about="kmeans from initial labels, which are made untimed: one assignment of ten is a gift",
        ),
        _one_by_one(
            name="fast-pytorch-kmeans",
            kmeans=_fast_pytorch_kmeans,
            package="fast_pytorch_kmeans",
            devices=("cpu", "cuda"),
            about="KMeans(tol=0).fit_predict(X, centroids); an empty cluster's centre becomes zero",
        ),
        Implementation(
            name="flash-kmeans",
            kmeans=_flash_kmeans,
            package="flash_kmeans",
            devices=("cuda",),
            about="batch_kmeans_Euclid(tol=0): all images at once, distances in tf32",
        ),
    )
}


def list_implementations() -> list[str]:
    """The names of the implementations, ours first."""
    return list(_IMPLEMENTATIONS)


def implementation(name: str) -> Implementation:
    """The implementation of that name; an error names the known ones."""
    return _IMPLEMENTATIONS[checks.one_of("implementation", name, _IMPLEMENTATIONS)]
