import pytest
import torch
from conftest import noise_images

from vqshield.draws import Draws, evaluate


def test_mean_and_sample_standard_deviation_over_runs() -> None:
    labels = torch.tensor([0, 1, 2, 3])
    predictions = torch.stack([labels, labels.flip(0), torch.tensor([0, 1, 0, 0])])
    draws = Draws(predictions, labels)
    assert draws.accuracies.tolist() == [1.0, 0.0, 0.5]
    assert draws.mean == 0.5
    assert draws.std == 0.5
    assert Draws(predictions[:1], labels).std == 0.0


def test_every_image_is_asked_once_a_run_in_order() -> None:
    images = noise_images(7, 1, 2, 2)
    labels = (images.flatten(1)[:, 0] > 0.5).long()
    seen = []

    def model(batch: torch.Tensor) -> torch.Tensor:
        seen.append(len(batch))
        return torch.stack([0.5 - batch.flatten(1)[:, 0], batch.flatten(1)[:, 0] - 0.5], 1)

    draws = evaluate(model, images, labels, runs=3, batch=3)
    assert seen == [3, 3, 1] * 3
    assert draws.mean == 1.0
    assert draws.predictions.shape == (3, 7)


@pytest.mark.parametrize(("runs", "batch"), [(0, 5), (2, 0)])
def test_bad_numbers_are_named(runs: int, batch: int) -> None:
    with pytest.raises(ValueError, match="=0 should be >= 1"):
        evaluate(
            lambda x: x, noise_images(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64), runs=runs, batch=batch
        )
