"""Reports read records and nothing else: a terminal table and a self-contained HTML page."""

from vqshield.reports.html import render_demo
from vqshield.reports.table import demo_table

__all__ = ["demo_table", "render_demo"]
