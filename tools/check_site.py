"""Check a folder of HTML pages: does every internal link, anchor and picture lead somewhere?

    python tools/check_site.py build/docs/html

Links to other sites are left alone: `make docs-links` asks for those, where there is a network.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_ATTRIBUTES = {
    "a": ("href",), "link": ("href",), "img": ("src", "srcset"), "script": ("src",),
    "source": ("src", "srcset"), "iframe": ("src",), "form": ("action",),
    "object": ("data",), "video": ("src", "poster"),
}  # fmt: skip


@dataclass(kw_only=True)
class _Page(HTMLParser):
    """What a page links to, and which anchors it has."""

    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        for name in _ATTRIBUTES.get(tag, ()):
            if name in found:
                self.links += _addresses(found[name]) if name == "srcset" else [found[name]]


@dataclass(frozen=True, kw_only=True)
class BrokenLink:
    """A link that leads nowhere; page: relative to the folder."""

    page: str
    link: str
    why: str

    def __str__(self) -> str:
        return f"{self.page}: {self.link}: {self.why}"


def broken_links(folder: Path) -> list[BrokenLink]:
    """Every internal link of every page below the folder that leads nowhere."""
    root = folder.resolve()
    pages = {path: _read(path) for path in sorted(root.rglob("*.html"))}
    return [
        BrokenLink(page=path.relative_to(root).as_posix(), link=link, why=why)
        for path, page in pages.items()
        for link in dict.fromkeys(page.links)
        if (why := _problem(link, path, root, pages)) is not None
    ]


def _problem(link: str, page: Path, root: Path, pages: dict[Path, _Page]) -> str | None:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    if not link:
        return "an empty address"
    target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
    if not target.is_relative_to(root):
        return "leads out of the site"
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "there is no such file"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "there is no such anchor"
    return None


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    page.close()
    return page


def _addresses(srcset: str) -> Iterator[str]:
    """ "small.png, large.png 2x" has two."""
    if srcset.startswith("data:"):  # one picture, inside the page
        return
    yield from (part.split()[0] for part in srcset.split(",") if part.strip())


if __name__ == "__main__":
    found = broken_links(Path(sys.argv[1]))
    for each in found:
        print(each, file=sys.stderr)
    pages = len(list(Path(sys.argv[1]).rglob("*.html")))
    print(f"{pages} pages, {len(found)} broken links")
    sys.exit(1 if found or not pages else 0)
