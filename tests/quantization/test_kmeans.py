"""k-means as a function: right, the same in every batch, and clear about what it cannot take."""

import pytest
import torch
from conftest import noise_images

import vqshield as vq


def spread(points, centres, labels):
    near = centres.gather(1, labels[..., None].expand(-1, -1, points.shape[2]))
    return (points.double() - near.double()).square().sum((1, 2))


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_labels_are_the_nearest_centres_and_centres_the_means(backend: str) -> None:
    points = 30 * noise_images(3, 200, 5) - 100
    found = vq.kmeans(points, 4, iterations=100, backend=backend)
    assert torch.equal(found.labels, torch.cdist(points.double(), found.centres.double()).argmin(2))
    for problem in range(3):
        for code in range(4):
            members = points[problem, found.labels[problem] == code]
            assert torch.allclose(members.mean(0), found.centres[problem, code], atol=1e-4)
    assert torch.allclose(found.inertia, spread(points, found.centres, found.labels), rtol=1e-6)


def test_a_problem_has_one_result_in_every_batch() -> None:
    points = noise_images(5, 60, 3).double() * torch.tensor([1e-6, 1.0, 1e6, 3.0, 0.0])[:, None, None]
    together = vq.kmeans(points, 6, restarts=3, seed=5)
    for number, problem in enumerate(points):
        alone = vq.kmeans(problem, 6, restarts=3, seed=5)
        assert torch.equal(alone.centres, together.centres[number])
        assert torch.equal(alone.labels, together.labels[number])
        assert torch.equal(alone.inertia, together.inertia[number])


def test_as_good_as_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.cluster")
    points = noise_images(4, 300, 8)
    ours = vq.kmeans(points, 8, restarts=8, iterations=100).inertia
    theirs = [sklearn.KMeans(8, n_init=8, random_state=0).fit(each.numpy()).inertia_ for each in points]
    assert torch.allclose(ours, torch.tensor(theirs, dtype=torch.float64), rtol=0.02)


def test_more_starts_are_never_worse_and_seeds_differ() -> None:
    points = noise_images(4, 80, 2)
    one, five = (vq.kmeans(points, 7, restarts=count) for count in (1, 5))
    assert bool((five.inertia <= one.inertia).all())
    assert not torch.equal(one.centres, vq.kmeans(points, 7, seed=1).centres)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_gpu_finds_the_same() -> None:
    points = noise_images(6, 300, 5)
    here, there = vq.kmeans(points, 7), vq.kmeans(points.cuda(), 7)
    assert there.centres.device.type == "cuda"
    assert torch.equal(here.labels, there.labels.cpu())
    assert torch.allclose(here.centres, there.centres.cpu(), atol=1e-5)


def test_no_problems_and_equal_points_are_no_error() -> None:
    assert vq.kmeans(torch.empty(0, 5, 2), 3).centres.shape == (0, 3, 2)
    assert vq.kmeans(torch.full((4, 2), 7.5), 3).inertia == 0


@pytest.mark.parametrize(
    ("points", "k", "message"),
    [
        (torch.ones(3, 2, dtype=torch.uint8), 1, "torch.uint8"),
        ([[1.0]], 1, "list"),
        (torch.ones(2), 1, r"shape \(2,\)"),
        (torch.ones(1, 0, 2), 1, "at least one point"),
        (torch.ones(3, 2), 4, "k=4 should be at most the number of points n=3"),
        (torch.ones(3, 2), 0, "k=0"),
        (torch.tensor([[0.0], [torch.nan]]), 1, "nan"),
        (torch.tensor([[-1.7e308], [1.7e308]], dtype=torch.float64), 1, "far apart"),
        (torch.tensor([[-3e38], [3e38]]), 1, "far apart"),
    ],
)
def test_what_cannot_be_taken_is_named(points, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vq.kmeans(points, k)
