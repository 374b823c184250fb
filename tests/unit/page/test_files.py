"""The page's own files load nothing from others, and no name can inject markup."""

import re
from importlib.resources import files
from itertools import pairwise

import pytest
from starlette.testclient import TestClient

from kvstore_ctl.page.page_routes import file_handlers
from stores.page_world import PageWorld

STATIC = files("kvstore_ctl.page") / "static"
NAMES = sorted(each.name for each in STATIC.iterdir())
# The namespace of SVG's elements, which no browser requests.
NOT_ASKED_FOR = "http://www.w3.org/2000/svg"
# Functions that turn text into markup or code.
SINKS = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function")


def text_of(name: str) -> str:
    """Returns a file of the page."""
    return (STATIC / name).read_text(encoding="utf-8")


def test_each_file_has_a_route_and_the_page_is_at_the_top() -> None:
    """Each file has one path, and no other path has a file."""
    assert file_handlers().keys() == {"/", *(f"/{each}" for each in NAMES)}


def test_a_file_may_run_and_load_its_own_alone(page: PageWorld) -> None:
    """Every response tells the browser to load the page's own files alone, errors too."""
    client = TestClient(page.site, base_url="http://localhost")
    assert client.get("/").content == (STATIC / "index.html").read_bytes()
    kinds = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg"}
    for name in [*NAMES, "nothing.html"]:
        response = client.get(f"/{name}")
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'self';")
        assert "frame-ancestors 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert "Set-Cookie" not in response.headers
        if name in NAMES:
            kind = kinds[name.rpartition(".")[2]]
            assert response.headers["Content-Type"].startswith(kind)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_names_no_other_host(name: str) -> None:
    """No file has an address, font or library of another host."""
    text = text_of(name).replace(NOT_ASKED_FOR, "")
    assert not re.search(r"https?:|//[a-z]+\.|@import|@font-face", text)


@pytest.mark.parametrize("name", NAMES)
def test_text_is_never_made_markup(name: str) -> None:
    """Names may have any text. No script writes text as markup, and no markup has scripts."""
    text = text_of(name)
    assert [sink for sink in SINKS if sink in text] == []
    assert not re.search(r"<script(?![^>]*src=)|\son[a-z]+=\"|style=\"|javascript:", text)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_of_bins_differ_by_lightness_in_one_direction(scheme: str) -> None:
    """The bins' lightness changes in one direction, and text on each bin is readable."""
    css = text_of("pictures.css")
    part = css.split("@media (prefers-color-scheme: dark)")[scheme == "dark"]
    fills = [_luminance(each) for each in re.findall(r"--bin-\d: (#\w{6})", part)[:6]]
    words = [_luminance(each) for each in re.findall(r"--on-bin-\d: (#\w{6})", part)[:6]]
    assert fills == sorted(fills, reverse=scheme == "light")
    steps = [_contrast(*pair) for pair in pairwise(fills)]
    assert min(steps) > 1.2
    assert min(_contrast(*pair) for pair in zip(fills, words, strict=True)) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read(scheme: str) -> None:
    """Text and alarms have a contrast of at least 4.5 to 1 on paper (WCAG 2.2, AA)."""
    css = text_of("page.css")
    part = css.split("@media (prefers-color-scheme: dark)")[scheme == "dark"]
    colours = dict(re.findall(r"--([a-z-]+): (#\w{6})", part))
    pairs = [("ink", "paper"), ("quiet", "paper"), ("accent", "paper"), ("alarm", "alarm-paper")]
    for words, paper in [*pairs, ("alarm", "paper")]:
        assert _contrast(_luminance(colours[words]), _luminance(colours[paper])) >= 4.5, words


def _luminance(colour: str) -> float:
    """Returns the relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)
