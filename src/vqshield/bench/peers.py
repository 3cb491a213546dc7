"""Other libraries' k-means, each with what makes it fast and equal: given start, ten iterations, no restarts.

They are imported only when they are measured. Most take one image's patches at a time: a batch is a
loop, and the conversion to their arrays is not timed.
"""

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vqshield.bench.implementation import Call, Implementation
from vqshield.bench.plain import assign
from vqshield.bench.workloads import Problem

Arrays = list[Any]


def _arrays(tensors: Tensor) -> Arrays:
    return [np.ascontiguousarray(each) for each in tensors.numpy()]


def _loop(problem: Problem, one: Callable[[Any, Any], Any], starts: Tensor | None = None) -> Call:
    """A call that gives `one` the patches and the start of every image in turn."""
    pairs = list(
        zip(_arrays(problem.patches), _arrays(problem.start if starts is None else starts), strict=True)
    )
    return lambda: torch.from_numpy(np.stack([one(patches, start) for patches, start in pairs]))


class ScikitLearn(Implementation):
    """sklearn.cluster.KMeans."""

    name, module, one_by_one = "scikit-learn", "sklearn", True
    about = "KMeans(algorithm='lloyd', init=array, n_init=1, tol=0); stops once no label changes"

    def kmeans(self, problem: Problem, threads: int) -> Call:
        """Image by image."""
        cluster, sklearn = import_module("sklearn.cluster"), import_module("sklearn")

        def one(patches: Any, start: Any) -> Any:
            model = cluster.KMeans(len(start), init=start, n_init=1, max_iter=problem.iterations, tol=0)
            return model.fit(patches).cluster_centers_

        loop = _loop(problem, one)

        def call() -> Tensor:
            with sklearn.config_context(assume_finite=True), warnings.catch_warnings(action="ignore"):
                return loop()

        return call


class SciPy(Implementation):
    """scipy.cluster.vq.kmeans2."""

    name, module, one_by_one = "scipy", "scipy", True
    about = "kmeans2(minit='matrix', check_finite=False)"

    def kmeans(self, problem: Problem, threads: int) -> Call:
        """Image by image."""
        vq = import_module("scipy.cluster.vq")

        def one(patches: Any, start: Any) -> Any:
            return vq.kmeans2(patches, start, iter=problem.iterations, minit="matrix", check_finite=False)[0]

        loop = _loop(problem, one)

        def call() -> Tensor:
            with warnings.catch_warnings(action="ignore"):  # an empty cluster keeps its centre, as ours
                return loop()

        return call


class Faiss(Implementation):
    """faiss.Kmeans."""

    name, module, one_by_one = "faiss-cpu", "faiss", True
    about = "Kmeans with init_centroids and no subsampling; splits a large cluster where one is empty"

    def kmeans(self, problem: Problem, threads: int) -> Call:
        """Image by image."""
        faiss = import_module("faiss")
        faiss.omp_set_num_threads(threads)
        count, dimensions = problem.patches.shape[1:]
        limits = {"min_points_per_centroid": 1, "max_points_per_centroid": count}

        def one(patches: Any, start: Any) -> Any:
            model = faiss.Kmeans(dimensions, len(start), niter=problem.iterations, **limits)
            model.train(patches, init_centroids=start)
            return model.centroids

        return _loop(problem, one)


class OpenCV(Implementation):
    """cv2.kmeans."""

    name, module, one_by_one = "opencv", "cv2", True
    about = "kmeans from initial labels, which are made untimed: one assignment of ten is a gift"

    def kmeans(self, problem: Problem, threads: int) -> Call:
        """Image by image; it takes no centres to start from, only labels."""
        cv2 = import_module("cv2")
        cv2.setNumThreads(threads)
        codes = problem.start.shape[1]
        # Its first round makes centres of the given labels: with ten rounds, ten updates, as everywhere.
        criteria = (cv2.TERM_CRITERIA_MAX_ITER + cv2.TERM_CRITERIA_EPS, problem.iterations, 0.0)
        labels = assign(problem.patches, problem.start).int()[..., None]

        def one(patches: Any, start: Any) -> Any:
            # It writes its own labels over those it is given.
            return cv2.kmeans(patches, codes, start.copy(), criteria, 1, cv2.KMEANS_USE_INITIAL_LABELS)[2]

        return _loop(problem, one, labels)


class FastPytorchKMeans(Implementation):
    """fast_pytorch_kmeans.KMeans."""

    name, module, one_by_one = "fast-pytorch-kmeans", "fast_pytorch_kmeans", True
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    about = "KMeans(tol=0).fit_predict(X, centroids); an empty cluster's centre becomes zero"

    def kmeans(self, problem: Problem, threads: int) -> Call:
        """Image by image."""
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


class FlashKMeans(Implementation):
    """flash_kmeans.batch_kmeans_Euclid, Triton kernels."""

    name, module = "flash-kmeans", "flash_kmeans"
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    about = "batch_kmeans_Euclid(tol=0): all images at once, distances in tf32"

    def kmeans(self, problem: Problem, threads: int) -> Call:
        """All images at once."""
        library = import_module("flash_kmeans")
        codes = problem.start.shape[1]

        def call() -> Tensor:
            centres: Tensor = library.batch_kmeans_Euclid(
                problem.patches, codes, max_iters=problem.iterations, tol=0.0, init_centroids=problem.start
            )[1]
            return centres

        return call
