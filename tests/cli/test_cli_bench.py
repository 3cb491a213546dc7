"""`vqshield bench`: a table or JSON of what was measured here, and clear errors."""

import json

import pytest
from typer.testing import CliRunner

from vqshield.cli.application import app
from vqshield.cli.bench import WORKLOADS
from vqshield.quantization.kernels import kernel_name


def bench(*options: str):
    return CliRunner().invoke(app, ["bench", "--device", "cpu", "--seconds", "0", *options])


@pytest.mark.slow
def test_json_has_a_row_per_workload_and_the_machine() -> None:
    measured = json.loads(bench("--threads", "1", "--json").stdout)
    assert [(row["defense"], row["side"]) for row in measured["rows"]] == list(WORKLOADS)
    for row in measured["rows"]:
        assert row["images_per_second"] > 0
        assert (row["kernel"], row["threads"]) == (kernel_name("auto", "cpu"), 1)
    assert {"torch", "processor", "device"} <= set(measured["environment"])


@pytest.mark.slow
def test_the_table_names_every_defense() -> None:
    shown = bench("--threads", "1").stdout
    assert all(defense.partition(":")[0] in shown for defense, _ in WORKLOADS)


@pytest.mark.parametrize(
    ("options", "named"), [(("--threads", "0"), "threads=0"), (("--device", "tpu"), "tpu")]
)
def test_wrong_options_are_refused(options, named) -> None:
    done = bench(*options)
    assert done.exit_code == 2
    assert named in done.stderr
