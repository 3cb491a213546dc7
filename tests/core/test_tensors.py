"""Safetensors files: equal content gives equal bytes, and what is written is read back."""

import json

import pytest
import torch
from safetensors import SafetensorError

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.tensors import read_tensors, tensors_to_bytes

TENSORS = {
    "b": torch.arange(3.0),
    "a": torch.ones(2, 2, dtype=torch.float16),
    "c": torch.tensor(5),
    "é": torch.zeros(0, 4),
}
METADATA = {f"key {number}": f"välue {number}" for number in range(12)}


def reverse(mapping):
    return dict(reversed(mapping.items()))


def test_the_order_of_dicts_does_not_show_in_the_bytes():
    content = tensors_to_bytes(TENSORS, METADATA)
    for _ in range(5):  # the library's own order differs from call to call
        assert tensors_to_bytes(reverse(TENSORS), reverse(METADATA)) == content
    assert content != tensors_to_bytes(TENSORS, {**METADATA, "key 1": "another"})


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(tensors_to_bytes(TENSORS, METADATA))
    tensors, metadata = read_tensors(path)
    assert metadata == METADATA
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[key], TENSORS[key]) for key in TENSORS)
    assert all(tensors[key].dtype == TENSORS[key].dtype for key in TENSORS)


def test_the_header_is_aligned_and_metadata_may_be_absent(tmp_path):
    content = tensors_to_bytes(TENSORS)
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    assert "__metadata__" not in json.loads(content[8 : 8 + length])
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    assert read_tensors(path)[1] == {}


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"no weight file .*none\.safetensors"):
        read_tensors(tmp_path / "none.safetensors")


@pytest.mark.parametrize("error", [SafetensorError("odd"), AttributeError("module 'torch' has no float4")])
def test_whatever_the_library_lets_out_names_the_file(tmp_path, monkeypatch, error):
    def failing(*_, **__):
        raise error

    (tmp_path / "x.safetensors").write_bytes(tensors_to_bytes(TENSORS))
    monkeypatch.setattr("vqshield.core.tensors.safe_open", failing)
    with pytest.raises(FileFormatError, match=r"x\.safetensors"):
        read_tensors(tmp_path / "x.safetensors")
