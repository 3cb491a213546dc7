"""A gate's report as files: JSON, JUnit XML for build servers, and Markdown for a pull request."""

from pathlib import Path
from xml.etree import ElementTree

from vqshield.core.errors import printable
from vqshield.core.files import write_atomically, write_json
from vqshield.core.serialization import to_plain
from vqshield.reports.text import escape_markdown
from vqshield_deploy.gating.gate import GateReport

JSON, JUNIT, MARKDOWN = "gate.json", "junit.xml", "summary.md"


def write_gate(out: Path, report: GateReport) -> None:
    """All three files."""
    write_json(out / JSON, to_plain(report))
    write_atomically(out / JUNIT, junit(report))
    write_atomically(out / MARKDOWN, gate_markdown(report).encode())


def junit(report: GateReport) -> bytes:
    """A test case per check: a failure is worse, an error was not measured."""
    found = [each.status for each in report.checks]
    suite = ElementTree.Element(
        "testsuite",
        name="vqshield gate",
        tests=str(len(report.checks)),
        failures=str(found.count("worse")),
        errors=str(found.count("not measured")),
    )
    for each in report.checks:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"gate.{each.run}", name=printable(f"{each.title}: {each.rule}")
        )
        if each.status != "ok":
            kind = "failure" if each.status == "worse" else "error"
            # XML has no form for control characters.
            ElementTree.SubElement(case, kind, message=printable(each.reason), type=each.status)
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"


def gate_markdown(report: GateReport) -> str:
    """The headline, the table, and what a reviewer must know."""
    table = report.table
    parts = [f"### {escape_markdown(table.title)}", table.markdown(), escape_markdown(table.caption)]
    text = "\n\n".join([*parts, *(f"- {escape_markdown(note)}" for note in report.notes)])
    return "\n".join(map(printable, text.split("\n"))) + "\n"
