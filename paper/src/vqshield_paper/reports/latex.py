"""A reproduced experiment as LaTeX tables that need no package."""

from vqshield.reports.text import escape_latex
from vqshield_paper.reports.comparison import headline
from vqshield_paper.reports.grid import document_table
from vqshield_paper.reports.notices import part_audits, part_warnings, unfinished
from vqshield_paper.reports.provenance import part_facts, section_title, summary_facts
from vqshield_paper.reproduction.model import Summary


def render_latex(summary: Summary) -> str:
    r"""A tabular for every part that has values, to be read with \input."""
    lines = [
        f"% {_comment(summary.id)}: {_comment(summary.title)}",
        r"% \renewcommand{\vqfarbelow}[1]{\textcolor{red}{#1}} shows in red what is far below.",
        r"\providecommand{\vqfarbelow}[1]{\textbf{#1}}",
    ]
    before = [*unfinished(summary), headline(summary)]
    lines += [rf"\par\noindent {escape_latex(line)}\par" for line in before if line]
    for part in summary.parts:
        lines += ["", rf"\par\medskip\noindent\textbf{{{escape_latex(section_title(part))}}}\par"]
        lines += [rf"\noindent\emph{{{escape_latex(line)}}}\par" for line in part_warnings(part)]
        if part.rows:
            table = document_table(part)
            tabular = table.latex(notes=True, low="vqfarbelow")
            lines += [rf"\noindent{tabular}\par", escape_latex(table.caption)]
        said = [f"{name}: {text}." for name, text in part_facts(part)]
        said += [f"{heading.rstrip('.')}." for heading, _ in part_audits(part)]
        lines += [escape_latex(" ".join(said)) + r"\par"]
    lines += [rf"\par\medskip\noindent {escape_latex(note)}\par" for note in summary.notes]
    made = "; ".join(f"{name}: {text}" for name, text in summary_facts(summary))
    return "\n".join([*lines, rf"\par\medskip\noindent {escape_latex(made)}.\par", ""])


def _comment(text: str) -> str:
    return " ".join(text.split()).encode("ascii", "replace").decode()
