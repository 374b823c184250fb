"""Looks at a site that was built: every link leads somewhere, and nothing is fetched from elsewhere.

`.venv/bin/python docs/site_check.py build/site` prints what is wrong and ends with 1, else with 0.
Links to other sites are looked at for their form alone: no network is needed.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

# Attributes that have the browser fetch something by itself, whatever the reader does.
FETCHED = {
    ("link", "href"),
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
}
# Of <link>: what is fetched; others, such as the next page, are for the reader.
FETCHED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "modulepreload", "manifest"}
HOST = re.compile(r"([A-Za-z0-9-]+\.)+[A-Za-z]{2,}|localhost|127\.0\.0\.1|\[::1\]")
IN_STYLE = re.compile(r"url\(\s*['\"]?(?!data:|#)([^)'\"]+)|@import\s+['\"]([^'\"]+)")


class Link(NamedTuple):
    """Where something leads, and whether a browser goes there by itself."""

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
        """Notes what an element leads to, and what leads to it."""
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
        """Yields a line for each link that leads nowhere, or would be fetched from elsewhere."""
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
    """Checks the site, and exit 0 or 1."""
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
