"""What the documentation site adds to the pages of docs/: the API reference, and files that lie elsewhere.

docs/conf.py calls it. The pages of docs/ are read on GitHub as well, so their links are those of the
repository; `site_links` turns what leads out of docs/ into what the site has.
"""

import inspect
import os
import re
import shutil
import typing
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import vqshield
from vqshield.leaderboards.page import write_board
from vqshield.leaderboards.study import BoardSummary

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GENERATED = DOCS / "generated"
"""Pages that are written at every build; git ignores them."""

REPOSITORY_PAGES = {
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    "examples/README.md": "examples",
    "paper/research/README.md": "research",
}
"""Markdown of the repository that is a page of the site."""
BOARD = ROOT / "paper" / "results" / "leaderboard-cifar10-resnet18"
"""The board that the site has as the page that `vqshield leaderboard` writes."""

ROOMS = ("defenses", "attacks", "surrogates", "auditing", "certificates")
BESIDE = ("models.draws", "data", "classifiers")
"""Modules that are imported by themselves: what the tutorials begin with."""
GROUPS = {
    "Shield a model": ("defend", "Defended"),
    "Defenses": (
        "RandDisc", "PRD", "SWRD", "Splitting", "GaussianNoise", "Preprocessor", "Quantizer", "Defense",
        "list_defenses",
    ),
    "Measure": ("evaluate", "audit", "ladder", "leaderboard", "certify", "certify_l1"),
    "Train": ("harden", "calibrate"),
    "Pictures and points": ("purify", "kmeans"),
}  # fmt: skip
"""The public names of vqshield by what they are for."""

_LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def grouped_names(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The groups above, and one for names without a group."""
    known = {name for group in GROUPS.values() for name in group}
    rest = tuple(name for name in names if name not in known and name not in ROOMS)
    return {**GROUPS, **({"More": rest} if rest else {})}


def site_links(text: str, page: str) -> str:
    """Markdown whose links lead to what the site has.

    Args:
        text: the page.
        page: where it lies in the repository, "docs/attacks.md".
    """
    folder = (ROOT / page).parent
    stands = DOCS if folder == DOCS else GENERATED / "repository"

    def led(found: re.Match[str]) -> str:
        target, anchor = found["target"], found["anchor"] or ""
        place = Path(os.path.normpath(folder / target))
        if "://" in target or not place.is_relative_to(ROOT) or not place.exists():
            return found[0]
        if place.is_dir():  # GitHub lists its files; a site has no page for it
            return found["text"]
        where = place.relative_to(ROOT).as_posix()
        if where in REPOSITORY_PAGES:
            new = f"/generated/repository/{REPOSITORY_PAGES[where]}.md"
        elif where == "README.md":
            new = "/index.md"
        elif place.parent == DOCS / "tutorials":
            new = f"/generated/tutorials/{place.stem}.rst"
        elif place.parent == DOCS:
            new = f"/{place.name}"
        elif place.is_relative_to(BOARD):  # not a page of Sphinx
            return f'<a href="{BOARD.name}/{place.relative_to(BOARD).as_posix()}">{found["text"]}</a>'
        else:  # a file to download, or a picture
            new = Path(os.path.relpath(place, stands)).as_posix()
        return f"[{found['text']}]({new}{anchor})"

    return _LINK.sub(led, text)


def write_pages() -> None:
    """Write what is generated, leaving alone what is up to date: Sphinx reads again what is newer."""
    pages = {
        f"repository/{name}.md": site_links((ROOT / page).read_text(), page)
        for page, name in REPOSITORY_PAGES.items()
    }
    pages |= {f"api/{name}.rst": text for name, text in _api_pages()}
    for name, text in pages.items():
        path = GENERATED / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for folder in ("repository", "api"):
        for path in (GENERATED / folder).iterdir():
            if f"{folder}/{path.name}" not in pages:
                path.unlink()


def write_board_pages(site: Path) -> None:
    """The board's folder with its records, and its pages as they are written today."""
    out = site / BOARD.name
    shutil.copytree(BOARD, out, dirs_exist_ok=True)
    write_board(out, BoardSummary.read(BOARD))


def _api_pages() -> Iterator[tuple[str, str]]:
    groups = grouped_names(vqshield.__all__)
    yield "index", _api_index(groups)
    told = [name for names in groups.values() for name in names]
    shown: set[object] = {getattr(vqshield, name) for name in told}
    rooms = {room: import_module(f"vqshield.{room}") for room in (*ROOMS, *BESIDE)}
    for module in rooms.values():
        shown |= {getattr(module, name) for name in _documented_names(module)}
    for name in told:
        own = getattr(vqshield, name)
        beside = [each for each in _classes_in(own) if each not in shown]
        shown |= set(beside)
        yield name, _name_page(name, own, beside)
    for room, module in rooms.items():
        yield room, _room_page(room, module)


def _api_index(groups: dict[str, tuple[str, ...]]) -> str:
    """A table of every public name with its first sentence, by group; then the packages."""
    lines = [
        *_headed("API reference", "="),
        "Examples begin with ``import vqshield as vq``. A page ends with tutorials that use its name.\n",
    ]
    for group, names in groups.items():
        lines += _headed(group, "-")
        lines += [".. list-table::", "   :widths: 30 70", "   :class: names\n"]
        for name in names:
            lines += [
                f"   * - :doc:`vq.{name} <{name}>`",
                f"     - {_first_sentence(getattr(vqshield, name))}",
            ]
        lines += ["", ".. toctree::", "   :hidden:\n", *(f"   vq.{name} <{name}>" for name in names), ""]
    lines += _headed("Packages", "-")
    lines += ["Packages with further names, and modules that a program imports directly.\n"]
    lines += [".. list-table::", "   :widths: 30 70", "   :class: names\n"]
    for room in (*ROOMS, *BESIDE):
        first = _first_sentence(import_module(f"vqshield.{room}"))
        lines += [f"   * - :doc:`{_called(room)} <{room}>`", f"     - {first}"]
    lines += ["", ".. toctree::", "   :hidden:\n"]
    lines += [*(f"   {_called(room)} <{room}>" for room in (*ROOMS, *BESIDE)), ""]
    return "\n".join(lines)


def _name_page(name: str, own: object, beside: list[type]) -> str:
    lines = [*_headed(f"vq.{name}", "="), *_documented(f"vqshield.{name}", own)]
    lines += [
        f".. minigallery:: vqshield.{name}",
        "   :add-heading: Examples that use it",
        "   :heading-level: -\n",
    ]
    if beside:
        lines += _headed("What it takes and gives", "-")
        for each in beside:
            lines += _documented(f"{each.__module__}.{each.__qualname__}", each)
    return "\n".join(lines)


def _room_page(room: str, module: ModuleType) -> str:
    lines = [*_headed(_called(room), "="), inspect.cleandoc(module.__doc__ or ""), ""]
    names = _documented_names(module)
    elsewhere = [name for name in names if getattr(vqshield, name, None) is getattr(module, name)]
    if elsewhere:
        links = ", ".join(f":doc:`{name} <{name}>`" for name in elsewhere)
        lines += [f"On pages of their own: {links}.\n"]
    here = [name for name in names if name not in elsewhere]
    classes = [name for name in here if inspect.isclass(getattr(module, name))]
    for title, names in (("Classes", classes), ("Functions", [name for name in here if name not in classes])):
        if names:
            lines += _headed(title, "-")
            for name in names:
                lines += _documented(f"vqshield.{room}.{name}", getattr(module, name))
    lines += [f".. minigallery:: {' '.join(f'vqshield.{room}.{name}' for name in here)}"]
    lines += ["   :add-heading: Examples that use them", "   :heading-level: -\n"]
    return "\n".join(lines)


def _documented(path: str, found: object) -> list[str]:
    if inspect.isclass(found):
        return [f".. autoclass:: {path}", "   :members:\n"]
    return [f".. autofunction:: {path}\n"]


def _documented_names(module: ModuleType) -> list[str]:
    """Public classes and functions of ours; constants and names for types speak for themselves."""
    names = getattr(module, "__all__", None) or [
        name
        for name, found in vars(module).items()
        if not name.startswith("_") and str(getattr(found, "__module__", "")).startswith(module.__name__)
    ]
    return [name for name in names if _is_ours(getattr(module, name))]


def _is_ours(found: object) -> bool:
    return (inspect.isclass(found) or inspect.isfunction(found)) and found.__module__.startswith("vqshield")


def _called(room: str) -> str:
    """As programs write it."""
    return f"vq.{room}" if room in ROOMS else f"vqshield.{room}"


def _classes_in(own: object) -> list[type]:
    """Classes of ours that a function takes or returns, and the classes of their fields."""
    if not inspect.isfunction(own):
        return []
    found: dict[type, None] = {}

    def look(hint: object, beside: str | None = None) -> None:
        if inspect.isclass(hint) and hint.__module__.startswith("vqshield") and hint not in found:
            if beside not in (None, hint.__module__) or hint.__name__.endswith("Manifest"):
                return  # a detail of another package, or of the files
            found[hint] = None
            if is_dataclass(hint):
                for part in typing.get_type_hints(hint).values():
                    look(part, hint.__module__)
        for part in typing.get_args(hint):
            for each in part if isinstance(part, list) else [part]:
                look(each, beside)

    for hint in typing.get_type_hints(own).values():
        look(hint)
    return list(found)


def _first_sentence(found: object) -> str:
    paragraph = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.])\s", paragraph)[0]


def _headed(title: str, line: str) -> list[str]:
    return [title, line * len(title), ""]
