"""How Sphinx builds the site: `make docs`. The pages are those of this folder, read on GitHub as well."""

import re
import sys
from importlib.metadata import files
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))

import vqshield  # noqa: E402
from site_pages import site_links, write_board_pages, write_pages  # noqa: E402

project = "vqshield"
author = "The vqshield developers"
copyright = "The vqshield developers, MIT licence"
version = release = vqshield.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["tutorials", "static", "generated/backreferences"]
nitpicky = True
linkcheck_ignore = [r"https://$"]  # a docstring that says how an address begins
smartquotes_action = "D"  # dashes alone: x' is a symbol

# Markdown as GitHub reads it.
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

# MathJax from a package, one file without fonts: no page asks for anything from elsewhere.
_MATHJAX = next(
    Path(str(each.locate())) for each in files("sphinx-mathjax-offline") or () if each.name == "tex-svg.js"
)
mathjax_path = "tex-svg.js"

# Docstrings are plain text with `code` in single backquotes.
default_role = "code"
autodoc_member_order = "bysource"
napoleon_use_param = False  # settings that share a description share a line
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
nitpick_ignore_regex = [("py:.*", r"(?!vqshield).*")]  # no other project's inventory can be asked offline

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "generated/tutorials",
    "filename_pattern": r"\.py$",
    "backreferences_dir": "generated/backreferences",
    "doc_module": ("vqshield",),
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "capture_repr": (),  # what is printed, not what the last line happens to return
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1000,
    "write_computation_times": False,
    "image_srcset": ["2x"],
}

html_theme = "furo"
html_title = "vqshield"
html_static_path = ["static", str(_MATHJAX)]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"priority": 300})]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}


def read_as_on_the_site(app: Sphinx, name: str, content: list[str]) -> None:
    """Links that lead out of docs/ are turned; generated pages have theirs already."""
    if not name.startswith("generated/"):
        content[0] = site_links(content[0], f"docs/{name}.md")


_COLON = "\ue000"  # of no font and no docstring


def before_napoleon(app: Sphinx, kind: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Settings that share one description, "a, b,\\n c: …", on one line; no "type: text" in properties."""
    text = "\n".join(lines)
    if kind in ("property", "attribute"):
        text = text.replace(":", _COLON)
    lines[:] = re.sub(r"(?m)^( +(?:\w+, )*\w+,)\n +((?:\w+, )*\w+: )", r"\1 \2", text).split("\n")


def after_napoleon(app: Sphinx, kind: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Colons of properties come back."""
    lines[:] = [line.replace(_COLON, ":") for line in lines]


def write_defaults(
    app: Sphinx, kind: str, name: str, of: object, options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Defaults as people write them: 4/255, and a function by its name."""
    if signature is not None:
        signature = re.sub(r"<function (\w+)[^>]*>", r"\1", signature)
        signature = re.sub(r"0\.\d{12,}", lambda found: _fraction_of_255(found[0]), signature)
    return signature, returns


def _fraction_of_255(number: str) -> str:
    levels = float(number) * 255
    return f"{levels:.0f} / 255" if abs(levels - round(levels)) < 1e-9 else number


def find_by_last_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.Node | None:
    """A type is annotated by the module that it lies in, and documented where users import it."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("vqshield."):
        return None
    domain = env.domains.python_domain
    last = target.rpartition(".")[2]
    places = [
        (name, found)
        for name, found in domain.objects.items()
        if name.rpartition(".")[2] == last and not found.aliased
    ]
    if not places:
        return text  # a detail that has no page of its own
    name, found = min(places, key=lambda place: len(place[0]))
    return make_refnode(app.builder, node.get("refdoc", ""), found.docname, found.node_id, [text], name)


def name_roles(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.Node | None
) -> None:
    """What the theme and Sphinx leave out: levels of headings, lists without terms, cells of numbers."""
    context["furo_navigation_tree"] = context["furo_navigation_tree"].replace(
        'role="heading"', 'role="heading" aria-level="2"'
    )
    body = re.sub(
        r"<td>(?=<p>(?:[-–+−±., \d]|not run)+</p></td>)", '<td class="number">', context.get("body") or ""
    )
    context["body"] = re.sub(  # the parameters of a long signature, one per line
        r"<dl>(?=\n<dd>)(.*?)</dl>",
        lambda found: f'<dl role="none">{found[1].replace("<dd>", """<dd role="none">""")}</dl>',
        body,
        flags=re.S,
    )


def add_board(app: Sphinx, failure: Exception | None) -> None:
    """The live leaderboard next to the pages."""
    if failure is None and app.builder.format == "html":
        write_board_pages(Path(app.outdir))


def setup(app: Sphinx) -> None:
    """Pages that are written at every build, links, references to types, and roles."""
    write_pages()
    app.connect("autodoc-process-docstring", before_napoleon, priority=100)  # napoleon has 500
    app.connect("autodoc-process-docstring", after_napoleon, priority=900)
    app.connect("autodoc-process-signature", write_defaults)
    app.connect("source-read", read_as_on_the_site)
    app.connect("missing-reference", find_by_last_name)
    app.connect("html-page-context", name_roles, priority=900)  # after the theme's
    app.connect("build-finished", add_board)
