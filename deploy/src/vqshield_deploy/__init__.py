"""Deploy what was measured: ONNX graphs, a server, and a gate for continuous integration.

>>> from vqshield_deploy import compare, export_onnx, gate
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vqshield_deploy.gating.comparison import compare as compare
    from vqshield_deploy.gating.gate import gate as gate
    from vqshield_deploy.onnx import export_onnx as export_onnx

_HOMES = {"compare": "gating.comparison", "export_onnx": "onnx", "gate": "gating.gate"}
__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
