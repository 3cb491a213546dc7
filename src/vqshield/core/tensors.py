"""Tensors in safetensors files, the only format that is read: nothing in them is executed."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import check_size

LENGTH = 8  # bytes of the number at the start of a file, the length of its JSON header; also its alignment


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file."""
    if not path.is_file():
        raise InvalidInputError(f"there is no weight file {path}")
    check_size(path, path.stat().st_size, "the file")
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}") from error
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:  # a dtype or shape
        raise FileFormatError(f"{path} has a tensor that torch cannot hold: {error}") from error


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a file, without its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}") from error


def tensors_to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file; equal tensors and metadata give equal bytes, whatever their order and device: the
    library writes the metadata in an order that differs from process to process.
    """
    copies = {  # layers may share a tensor, which safetensors does not store
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    content = save(copies, None if metadata is None else dict(metadata))
    end = LENGTH + int.from_bytes(content[:LENGTH], "little")
    header = json.dumps(
        json.loads(content[LENGTH:end]), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    ).encode()
    header += b" " * (-len(header) % LENGTH)
    return len(header).to_bytes(LENGTH, "little") + header + content[end:]
