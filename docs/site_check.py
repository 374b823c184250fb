"""Checks a built site: every link has a target, and a browser fetches nothing from other sites.

`.venv/bin/python docs/site_check.py build/site` prints wrong links and ends with 1, else with 0.
Of links to other sites it checks the form only, so it needs no network.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

# Attributes whose target a browser fetches by itself.
FETCHED = {
    ("link", "href"),
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
}
# Kinds of <link> that a browser fetches; others, such as the next page, are for the reader.
FETCHED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "modulepreload", "manifest"}
HOST = re.compile(r"([A-Za-z0-9-]+\.)+[A-Za-z]{2,}|localhost|127\.0\.0\.1|\[::1\]")
IN_STYLE = re.compile(r"url\(\s*['\"]?(?!data:|#)([^)'\"]+)|@import\s+['\"]([^'\"]+)")


class Link(NamedTuple):
    """The target of a link. ``fetched`` is true if a browser loads it by itself."""

    target: str
    fetched: bool


class Page(HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[Link] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Records the links and the anchors of an element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        for name in ("href", "src"):
            if name in given:
                fetched = (tag, name) in FETCHED
                if tag == "link":
                    fetched = bool(FETCHED_LINKS & set(given.get("rel", "").split()))
                self.links.append(Link(given[name], fetched))


class Site:
    """A folder of pages."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        paths = sorted(self._root.rglob("*.html"))
        self.pages = {path: Page(path.read_text(encoding="utf-8")) for path in paths}

    def wrong(self) -> Iterator[str]:
        """Yields a line for each link without a target, or that a browser would fetch from another site."""
        for path, page in self.pages.items():
            for link in page.links:
                if why := self._why_wrong(path, link):
                    yield f"{path.relative_to(self._root)}: {link.target}: {why}"
        for path in sorted(self._root.rglob("*.css")):
            for found in IN_STYLE.finditer(path.read_text(encoding="utf-8")):
                target = found[1] or found[2]
                if why := self._why_wrong(path, Link(target, fetched=True)):
                    yield f"{path.relative_to(self._root)}: {target}: {why}"

    def _why_wrong(self, path: Path, link: Link) -> str | None:
        parts = urlsplit(link.target)
        if parts.scheme or parts.netloc:
            if link.fetched and parts.scheme != "data":
                return "is fetched from another site"
            return None if _well_formed(link.target) else "is no address"
        target = self._root if parts.path.startswith("/") else path.parent
        target = (target / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
        if target.is_dir():
            target /= "index.html"
        if not target.is_relative_to(self._root) or not target.is_file():
            return "leads nowhere"
        page = self.pages.get(target)
        if page is not None and unquote(parts.fragment) not in page.anchors:
            return "has no such heading"
        return None


def _well_formed(address: str) -> bool:
    parts = urlsplit(address)
    if parts.scheme in {"mailto", "data"}:
        return True
    host = parts.netloc.rpartition("@")[2].partition(":")[0] if "[" not in address else "[::1]"
    return parts.scheme in {"http", "https"} and HOST.fullmatch(host) is not None


def main() -> int:
    """Checks the site, and returns 0 or 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    site = Site(parser.parse_args().site)
    wrong = list(site.wrong())
    count = sum(len(page.links) for page in site.pages.values())
    sys.stdout.write("".join(f"{line}\n" for line in wrong))
    sys.stdout.write(f"{len(site.pages)} pages, {count} links, {len(wrong)} wrong\n")
    return 1 if wrong or not site.pages else 0


if __name__ == "__main__":
    sys.exit(main())
