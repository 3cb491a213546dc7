"""The digest of package.module:function: of all of a user's code that the function may run."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vqshield.core.entry_points import function_digest

FILES = {
    "vq_user/__init__.py": "from .deep import value\n",
    "vq_user/deep.py": "value = 1\n",
    "vq_user/main.py": "from . import near\nfrom vq_user.bare.constants import SIGMA\n"
    "def blur(images):\n    import vq_lazy\n    return images\n",
    "vq_user/near.py": "try:\n    from ...nowhere import x\nexcept ImportError:\n    import vq_last as x\n",
    "vq_user/bare/constants.py": "SIGMA = 0.5\n",
    "vq_last.py": "import torch, json, vqshield, itertools, vq_user.main\n",
    "vq_lazy.py": "import broken\n",
    "broken.py": "def (\n",
    "vq_user/unrelated.py": "",
    "vq_unrelated.py": "",
}
USED = [name for name in FILES if "unrelated" not in name]


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("vq_"):
            del sys.modules[name]


def test_the_digest_covers_every_user_file_that_is_imported(user_code: Path) -> None:
    importlib.import_module("vq_user.main")
    found = [function_digest("vq_user.main:blur")]
    for name in FILES:
        with (user_code / name).open("a") as file:
            file.write("# edited\n")
        found.append(function_digest("vq_user.main:blur"))
    assert len(set(found)) == 1 + len(USED)
    assert found[-1] == found[-3], "nothing imports the last two"


def test_the_digest_depends_neither_on_the_folder_nor_on_what_is_loaded(user_code: Path) -> None:
    moved = user_code.with_name(user_code.name + "-moved")
    code = "from vqshield.core.entry_points import function_digest as f; print(f('vq_user.main:blur'))"
    found = set()
    for folder, first in ((user_code, ""), (moved, "import vq_user.main; ")):
        path = os.pathsep.join([str(folder), *sys.path])
        environment = os.environ | {"PYTHONPATH": path}
        found.add(subprocess.check_output([sys.executable, "-c", first + code], env=environment))
        if folder == user_code:
            user_code.rename(moved)
    assert len(found) == 1
    assert len(found.pop().strip()) == 64


def test_of_an_installed_function_its_own_file_counts() -> None:
    assert len(function_digest("torch:round") or "") == 64
    assert function_digest("sys:exit") is None
    assert function_digest("vq_nowhere:f") is None
