"""`vqshield palette` from the outside."""

import numpy as np
from PIL import Image
from typer.testing import CliRunner

from vqshield.cli.application import app


def test_pictures_become_indexed_and_a_broken_one_fails_alone(tmp_path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"nothing")
    arguments = ["palette", str(tmp_path), "--out", str(tmp_path / "out"), "--colors", "5", "--dither"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "1 of 2 pictures" in result.stdout
    assert "b.png" in result.stderr
    with Image.open(tmp_path / "out" / "a.png") as image:
        assert (image.mode, image.size, len(image.getcolors())) == ("P", (30, 20), 5)
