"""Records name the commit of the code that made them: of a checkout, and of an archive of one."""

import io
import runpy
import subprocess
import tarfile
from functools import partial
from pathlib import Path

import pytest

from vqshield_paper.reproduction.runner import commit


def run_git(folder: Path, *arguments: str) -> bytes:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    whole = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(whole, check=True, capture_output=True).stdout


def test_the_commit_is_that_of_a_checkout_with_this_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = partial(run_git, tmp_path)
    code = tmp_path / "vqshield" / "__init__.py"
    code.parent.mkdir()
    code.touch()
    monkeypatch.setattr("vqshield.__file__", str(code))
    git("init")
    git("commit", "--allow-empty", "-m", "another project")
    for known in (None, "an archive's"):
        monkeypatch.setattr("vqshield.runs.archived.COMMIT", known)
        assert commit() == known
    git("add", ".")
    git("commit", "-m", "ours")
    found = commit()
    assert found is not None
    assert len(found) == 40


def test_an_archive_of_the_repository_knows_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = partial(run_git, tmp_path)
    root = Path(__file__).resolve().parents[3]
    for name in (".gitattributes", "src/vqshield/runs/archived.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((root / name).read_bytes())
    git("init")
    git("add", ".")
    git("commit", "-m", "ours")
    code = tmp_path / "src/vqshield/runs/archived.py"
    if runpy.run_path(str(code))["COMMIT"] is not None:
        pytest.skip("these tests come from an archive themselves")
    with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD"))) as archive:
        code.write_bytes(archive.extractfile("src/vqshield/runs/archived.py").read())
    known = runpy.run_path(str(code))["COMMIT"]
    assert known == git("rev-parse", "HEAD").decode().strip()
    monkeypatch.setattr("vqshield.__file__", str(tmp_path / "elsewhere" / "__init__.py"))
    monkeypatch.setattr("vqshield.runs.archived.COMMIT", known)
    assert commit() == known
