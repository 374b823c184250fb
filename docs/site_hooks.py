"""Hooks of mkdocs: the site's pages, and the navigation of the decisions.

The pages keep their paths of the tree, so their links work unchanged. The site has the README,
the files that links lead to from it, and no other file.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
FIRST = "README.md"
DECISIONS = "Decisions"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = re.compile(r"[a-z]+:")
# Comments, such as the reason why no test runs a snippet.
COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the decisions in the navigation, by their numbers."""
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    listed = [path.relative_to(ROOT).as_posix() for path in pages]
    for part in config.nav or []:
        if DECISIONS in part:
            part[DECISIONS] = listed
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Returns the theme's files, and those of the tree that links reach from the README."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for path in (*reached(ROOT / FIRST), *(ROOT / each for each in config.extra_css)):
        uri = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Returns a page without its comments."""
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else COMMENT.sub("", part) for part in parts)


def reached(first: Path) -> list[Path]:
    """Returns a page and all files that links reach from it, also by way of other pages."""
    found, left = {first}, [first]
    while left:
        page = left.pop()
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for link in LINK.findall(text):
            target = (page.parent / link).resolve()
            if ELSEWHERE.match(link) or target in found or not target.is_file():
                continue
            found.add(target)
            if target.suffix == ".md":
                left.append(target)
    return sorted(found)
