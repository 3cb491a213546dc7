"""Literal, loop-by-loop transcriptions of the paper's Algorithms 1 and 2, in float64.

They share nothing with the library but its random numbers (tested on their own) and one documented decision:
noisy patches and centres are kept on a grid of 2^-bits.
"""

import math

import numpy as np


def grid_bits(d: int, noise: float) -> int:
    """At most 23, and so few that every score and squared distance is exact in float64."""
    bound = 1 + noise * math.sqrt(64 * math.log(2))
    largest = d * max(3 * bound**2, (2 * bound - 1) ** 2)
    return min(23, (53 - math.ceil(math.log2(largest))) // 2)


def on_grid(values: np.ndarray, bits: int) -> np.ndarray:
    return np.round(values * 2.0**bits) / 2.0**bits


def patches_on_grid(values: np.ndarray, bits: int) -> np.ndarray:
    """As on_grid, but half-way values go up."""
    return np.floor(values * 2.0**bits + 0.5) / 2.0**bits


def disjoint_corners(h: int, w: int, s: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(0, h, s) for j in range(0, w, s)]


def sliding_corners(h: int, w: int, s: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(h - s + 1) for j in range(w - s + 1)]


def pad(image: np.ndarray, s: int, padding: str) -> np.ndarray:
    bottom, right = -image.shape[1] % s, -image.shape[2] % s
    mode = {"zero": "constant", "reflect": "reflect"}[padding]
    return np.pad(image, ((0, 0), (0, bottom), (0, right)), mode=mode)


def cut(image: np.ndarray, corners: list[tuple[int, int]], s: int) -> np.ndarray:
    return np.array([image[:, i : i + s, j : j + s].ravel() for i, j in corners])


def squared_distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a - b) ** 2).sum())


def nearest(point: np.ndarray, centres: np.ndarray) -> int:
    best, chosen = math.inf, -1
    for number, centre in enumerate(centres):
        distance = squared_distance(point, centre)
        if distance < best:  # strictly: the lowest index wins a tie
            best, chosen = distance, number
    return chosen


def kmeans_plus_plus(points: np.ndarray, k: int, words: np.ndarray) -> np.ndarray:
    n = len(points)
    centres = [points[int(words[0]) * n >> 32]]
    for j in range(1, k):
        weights = [min(squared_distance(p, c) for c in centres) for p in points]
        total = math.fsum(weights)
        index = int(words[j]) * n >> 32
        if total > 0:
            target, running = words[j] / 2**32 * total, 0.0
            for i, weight in enumerate(weights):
                running += weight
                if running > target:
                    index = i
                    break
        centres.append(points[index])
    return np.array(centres)


def random_distinct(points: np.ndarray, k: int, words: np.ndarray) -> np.ndarray:
    """Floyd's algorithm for k distinct numbers below n."""
    chosen: list[int] = []
    for j in range(k):
        last = len(points) - k + j
        candidate = int(words[j]) * (last + 1) >> 32
        chosen.append(last if candidate in chosen else candidate)
    return points[chosen]


def lloyd(points: np.ndarray, centres: np.ndarray, iterations: int, bits: int) -> np.ndarray:
    centres = centres.copy()
    previous: list[int] = []
    for _ in range(iterations):
        labels = [nearest(p, centres) for p in points]
        if labels == previous:
            break
        for number in range(len(centres)):
            members = [p for p, label in zip(points, labels, strict=True) if label == number]
            if members:
                centres[number] = on_grid(np.sum(members, axis=0) / len(members), bits)
        previous = labels
    return centres


def rebuild_disjoint(quantized: np.ndarray, corners: list[tuple[int, int]], shape: tuple[int, ...], s: int):
    image = np.full(shape, np.nan)
    for patch, (i, j) in zip(quantized, corners, strict=True):
        image[:, i : i + s, j : j + s] = patch.reshape(shape[0], s, s)
    return image


def rebuild_sliding(
    patches: np.ndarray,
    quantized: np.ndarray,
    corners: list[tuple[int, int]],
    shape: tuple[int, ...],
    s: int,
    beta: float,
):
    image = np.full(shape, np.nan)
    distances = [squared_distance(q, p) for q, p in zip(quantized, patches, strict=True)]
    for y in range(shape[1]):
        for x in range(shape[2]):
            values, similarity = [], []
            for number, (i, j) in enumerate(corners):
                if i <= y < i + s and j <= x < j + s:
                    values.append(quantized[number].reshape(shape[0], s, s)[:, y - i, x - j])
                    similarity.append(-beta * distances[number])
            largest = max(similarity)
            weights = [math.exp(value - largest) for value in similarity]
            image[:, y, x] = sum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)
    return image
