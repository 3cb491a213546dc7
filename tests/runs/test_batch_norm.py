"""Batch-norm statistics behind a defense: calibrated, and recorded."""

import numpy as np
import pytest

import vqshield as vq
from vqshield.core.errors import InvalidInputError
from vqshield.data import sample
from vqshield.evaluation.study import Evaluation
from vqshield.runs.batch_norm import calibrated_for, parse_batch_norm, recorded_batch_norm
from vqshield.runs.target import Target


def test_a_folder_is_read_and_recorded_without_its_place(tmp_path):
    found = parse_batch_norm(f"calibrated:data=npz,images=64,data_dir={tmp_path}/a b/train.npz")
    assert found == {"data": "npz", "images": 64, "data_dir": f"{tmp_path}/a b/train.npz"}
    recorded = recorded_batch_norm(f"calibrated:data=npz,data_dir={tmp_path}/train.npz")
    assert recorded == "calibrated:data=npz,data_dir=train.npz"
    np.savez(tmp_path / "train.npz", images=sample(40).images.numpy(), labels=sample(40).labels.numpy())
    assert parse_batch_norm("calibrated:data_dir=x") == {"data_dir": "x"}
    spec = f"calibrated:data=npz,method=paired,data_dir={tmp_path}/train.npz"
    assert calibrated_for(spec, Target(), vq.PRD(codes=4, seed=0)) is not Target().model


@pytest.mark.parametrize(
    "text", ["running:data_dir=x", "own", "running:size=3", "batch:size=4", "calibrated:size=3"]
)
def test_nonsense_is_refused(text):
    with pytest.raises(InvalidInputError):
        Evaluation(batch_norm=text)
    with pytest.raises(InvalidInputError):
        parse_batch_norm(text)
