"""The compiler's fault that benchmarks/compiled.py looks for, in code that was compiled for a GPU."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the package triton is not installed")

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "compiled.py"
runs_over = runpy.run_path(str(BENCHMARK))["runs_over"]

# As Triton 3.6 compiled a kernel that stopped an H200: the upper half of %rd35 should be 4 times %r67.
WRONG = """
	mul.wide.u32 	%rd32, %r59, 2147483648;
	shl.b64 	%rd34, %rd33, 34;
	or.b64 	%rd35, %rd32, %rd34;
	shl.b32 	%r77, %r67, 2;
	mov.b64 	{_, %r78}, %rd35;
"""


def test_halves_of_two_shifts_are_found() -> None:
    assert runs_over(WRONG)


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("mov.b64 	{_, %r78}, %rd35;", "ld.global.b32 	%r78, [%rd35];"),
        ("mul.wide.u32 	%rd32, %r59, 2147483648;\n\tshl.b64 	%rd34, %rd33, 34;", ""),
        ("or.b64 	%rd35, %rd32, %rd34;", "add.s64 	%rd35, %rd32, %rd34;"),
    ],
)
def test_addresses_and_packed_pairs_are_not(line: str, instead: str) -> None:
    assert line in WRONG
    assert not runs_over(WRONG.replace(line, instead))
