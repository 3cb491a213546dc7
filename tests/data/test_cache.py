"""Where data lie that nobody gave a folder for."""

import sys
from pathlib import Path

import pytest

from vqshield.core.errors import InvalidInputError
from vqshield.data import cache_folder, load


def test_the_variable_decides_then_the_platform(monkeypatch, tmp_path):
    monkeypatch.setenv("VQSHIELD_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("VQSHIELD_CACHE")
    for platform, variable, below in [
        ("linux", "XDG_CACHE_HOME", "vqshield"),
        ("win32", "LOCALAPPDATA", "vqshield/Cache"),
    ]:
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setenv(variable, str(tmp_path))
        assert cache_folder() == tmp_path / below
        monkeypatch.delenv(variable)
        assert Path.home() in cache_folder().parents
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == Path.home() / "Library" / "Caches" / "vqshield"


def test_without_a_folder_the_cache_is_read(monkeypatch, tmp_path):
    monkeypatch.setenv("VQSHIELD_CACHE", str(tmp_path))
    with pytest.raises(InvalidInputError, match=r"needs the folder.*download cifar10.*test_batch\.bin"):
        load("cifar10", "test")
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073))
    assert len(load("cifar10", "test")) == 1


def test_what_is_nobodys_in_particular_needs_a_folder():
    for name in ("folder", "npz"):
        with pytest.raises(InvalidInputError, match=f"'{name}' needs its folder"):
            load(name, "test")
