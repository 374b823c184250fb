"""The page in Debian's Chromium, on a real server with prompts in it."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from docs.browser import MISSING, Browser, browsing, chromium
from kvstore_client.testing import RunningStore
from pages.stamped_pages import PART_PAGES, PART_TOKENS, prompt
from processes.page_worker import page_process
from stores.page_stage import HOSTILE, converse, joined, page_of, page_store, run

pytestmark = pytest.mark.skipif(chromium() is None, reason=MISSING)

CASES = json.loads((Path(__file__).parents[1] / "data" / "savings.json").read_text())
BARS = "document.querySelectorAll('#tree-picture .bar').length"
# More than a picture has at once.
MANY = 70
PATH = "document.querySelector('#tree-path').innerText"
FOCUSED = "document.activeElement.getAttribute('aria-label')"
NEED_NAMES = {"button", "checkbox", "combobox", "image", "link", "radio", "slider", "table"}
WIDE, NARROW = (1280, 900), (375, 800)


@pytest.fixture(scope="module")
def store() -> Iterator[RunningStore]:
    """Provides a store of the page's size."""
    with page_store() as running:
        yield running


@pytest.fixture(scope="module")
def page(store: RunningStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Provides the page, fully drawn: two namespaces, two leases and a held pin."""
    with ExitStack() as stack:
        # Before the prompts: the history begins with the page.
        address = stack.enter_context(page_of(store))
        namespace = stack.enter_context(joined(store, "tiny", "worker A"))
        other = stack.enter_context(joined(store, HOSTILE, HOSTILE))
        longest = converse(namespace)
        for number in range(MANY):
            run(other, [number] * 16)
        stack.enter_context(namespace.match(longest))
        browser = stack.enter_context(browsing(tmp_path_factory.mktemp("browser")))
        browser.resize(*WIDE)
        browser.open(address)
        browser.wait(f"{BARS} > 5")
        browser.wait("document.querySelectorAll('#hit-rate path.line').length === 1")
        yield browser


def test_the_icicle_zooms_by_pointer(page: Browser) -> None:
    """Clicking a bar zooms in on it, and the path above leads back."""
    before = page.look(BARS)
    page.click("#tree-picture .bar:nth-of-type(2)")
    page.wait(f"{PATH}.includes('tokens') && {BARS} < {before}")
    assert page.look(PATH).startswith("all prefixes")
    page.click("#tree-path button")
    page.wait(f"{BARS} === {before} && !{PATH}.includes('tokens')")


def test_the_icicle_zooms_by_keyboard(page: Browser) -> None:
    """Arrow keys move between bars, Enter zooms in, Escape zooms out, and the focus stays."""
    before = page.look(BARS)
    page.look("document.querySelector('#tree-picture [tabindex=\"0\"]').focus()")
    first = page.look(FOCUSED)
    page.press("ArrowRight")
    below = page.look(FOCUSED)
    page.press("ArrowDown")
    assert len({first, below, page.look(FOCUSED)}) == 3
    page.press("ArrowUp")
    page.press("ArrowLeft")
    assert page.look(FOCUSED) == first
    page.press("Enter")
    page.wait(f"{BARS} < {before} && document.activeElement.classList.contains('bar')")
    page.press("Escape")
    page.wait(f"{BARS} === {before}")


def test_what_is_held_is_marked_by_a_pattern(page: Browser) -> None:
    """A pinned path has stripes, and its label says that it is held."""
    marks = page.look("document.querySelectorAll('#tree-picture .mark').length")
    assert 0 < marks < page.look(BARS)
    assert "Held by 1 hold" in page.look(
        "document.querySelector('.mark').parentNode.getAttribute('aria-label')"
    )


def test_the_sliders_change_the_result(page: Browser) -> None:
    """The sliders work by keyboard, and the text shows the result."""
    said = "document.querySelector('#savings-form output').innerText"
    before = page.look(said)
    page.look("document.querySelector('#requests').focus()")
    page.press("ArrowRight")
    page.wait(f"{said} !== {json.dumps(before)}")
    assert "202,000 tokens computed instead of 4,200,000" in page.look(said)
    page.press("ArrowLeft")
    page.wait(f"{said} === {json.dumps(before)}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_the_calculator_agrees_with_kvstore_ctl(page: Browser, case: dict[str, object]) -> None:
    """The page's calculator and kvstore-ctl agree on the same cases."""
    names = ("shared", "suffix", "requests", "prefill_tokens_per_second")
    given = json.dumps([case[name] for name in names])
    found = page.look(f"import('./savings_math.js').then((it) => it.prefixSavings(...{given}))")
    assert found == pytest.approx(case["expected"])


COLUMNS = ["time", "asked", "found", "lookups", "evicted", "returned"]


def test_rates_are_of_what_came_between_two_samples(page: Browser) -> None:
    """A rate is computed between two samples, and is absent if nothing was asked."""
    fine = [[0, 0, 0, 0, 0, 0], [1, 100, 0, 1, 0, 0], [2, 100, 0, 1, 0, 0], [3, 300, 150, 3, 2, 1]]
    answer = json.dumps({"columns": COLUMNS, "fine": fine, "coarse": fine[:1]})
    found = page.look(
        f"import('./rates.js').then((it) => {{ const kept = new it.Samples();"
        f"kept.add({answer}); kept.add({answer});"
        "return [kept.fine.length, kept.newest, it.points(kept.fine, 1), it.points(kept.fine, 2),"
        " it.lately(kept.fine, 2), it.lately(kept.fine.slice(0, 1), 60),"
        " [0, 0.3, 7, 20, 21].map(it.roundUp)]; })"
    )
    length, newest, each_second, each_other, lately, too_early, rounded = found
    assert (length, newest, lately, too_early) == (4, 3, 0.75, None)
    assert [each["hitRate"] for each in each_second] == [0, None, 0.75]
    assert [each["savedRate"] for each in each_second] == [0, 0, 150]
    assert [(each["from"], each["time"], each["asked"]) for each in each_other] == [(0, 2, 100)]
    assert rounded == [1, 0.5, 10, 20, 50]


def test_bars_stand_where_their_tokens_are(page: Browser) -> None:
    """Each bar lies below the one that it continues, with one row for each leaf."""
    leaf = {"children": [], "other": None, "total": 20, "tokens": 20, "start": 1000}
    rest = {"count": 4, "total": 40, "skip": 2}
    top = {"id": 1, "start": 0, "tokens": 1000, "total": 1080, "other": rest}
    top["children"] = [{**leaf, "id": 2}, {**leaf, "id": 3}]
    root = {"id": 0, "start": 0, "tokens": 0, "total": 1080, "children": [top], "other": None}
    plan = page.look(f"import('./icicle.js').then((it) => it.layOut({json.dumps(root)}))")
    placed = [(each["from"], each["to"], each["row"], each["rows"]) for each in plan["bars"]]
    assert placed == [(0, 1000, 0, 3), (1000, 1020, 0, 1), (1000, 1020, 1, 1), (1000, 1010, 2, 1)]
    assert (plan["rows"], plan["from"], plan["to"], plan["cut"]) == (3, 995, 1020, True)


def test_a_lease_shows_what_it_holds(page: Browser) -> None:
    """An opened lease shows its holds below it, and keeps them when the page updates."""
    rows = "document.querySelectorAll('#lease-table tr.holds td table tbody tr').length"
    page.click("#lease-table .opens")
    page.wait(f"{rows} === 1")
    page.wait("document.querySelector('#lease-table tr.holds').innerText.includes('pin')")
    page.click("#lease-table .opens")
    page.wait(f"{rows} === 0")


def test_a_moment_of_a_chart_can_be_read(page: Browser) -> None:
    """Arrow keys read a chart's values at one moment, and each chart is also a table."""
    page.look("document.querySelector('#hit-rate .chart').focus()")
    page.press("ArrowLeft")
    page.wait("/%|no lookups/.test(document.querySelector('#hit-rate .readout').innerText)")
    assert page.look("document.querySelectorAll('#reuse-table tbody tr').length >= 0")


def test_a_name_is_text_whatever_it_says(page: Browser) -> None:
    """A name that looks like markup is shown as text, and nothing of it runs."""
    for place in ("#namespace-table", "#lease-table", "#tree-namespace"):
        page.wait(f"document.querySelector('{place}').textContent.includes({json.dumps(HOSTILE)})")
    assert page.look("document.title") == "kvstore"
    assert page.look("document.querySelectorAll('main img, main script').length") == 0


def test_everything_has_a_name(page: Browser) -> None:
    """Every control and picture of the page has a name for screen readers."""
    told = page.named_nodes()
    assert [each for each in told if each[0] in NEED_NAMES and not each[1].strip()] == []
    assert {"main", "banner", "navigation", "contentinfo"} <= {role for role, _ in told}
    ids = "[...document.querySelectorAll('[id]')].map((each) => each.id)"
    assert page.look(f"new Set({ids}).size === {ids}.length")
    levels = page.look("[...document.querySelectorAll('h1,h2,h3')].map((each) => each.tagName)")
    assert levels[0] == "H1"
    assert levels.count("H1") == 1


def test_focus_can_be_seen(page: Browser) -> None:
    """Every element that Tab reaches has a visible outline, or a thick edge if it is a bar."""
    page.look("document.querySelector('.skip').focus()")
    edge = (
        "(() => { const it = document.activeElement;"
        "const of = (each) => getComputedStyle(each);"
        "return it === document.body ? -1 : it.classList.contains('bar')"
        "? parseFloat(of(it.querySelector('.fill')).strokeWidth)"
        ": of(it).outlineStyle === 'none' ? 0 : parseFloat(of(it).outlineWidth); })()"
    )
    seen = []
    for _ in range(40):
        page.press("Tab")
        width = page.look(edge)
        if width < 0:
            break
        seen.append(width)
    assert len(seen) > 15
    assert min(seen) >= 2


def test_the_rest_is_one_bar_that_leads_to_the_next(page: Browser) -> None:
    """The page draws the largest prefixes, and one bar leads to the others with their number."""
    choose = (
        "(() => {{ const choice = document.querySelector('#tree-namespace');"
        "choice.selectedIndex = {}; choice.dispatchEvent(new Event('change')); }})()"
    )
    other = "document.querySelectorAll('#tree-picture .other').length"
    page.look(choose.format(1))
    page.wait(f"{other} === 1 && {BARS} === 61")
    page.click("#tree-picture .other")
    page.wait(f"{other} === 0 && {BARS} === {MANY - 60}")
    assert "without the 60 largest" in page.look(PATH)
    page.look(choose.format(0))
    page.wait(f"!{PATH}.includes('without') && document.querySelector('.mark') !== null")


def test_a_worker_that_hangs_is_seen(page: Browser, store: RunningStore) -> None:
    """A worker past its TTL is listed first, with its reserved slots in quarantine."""
    alarm = "document.querySelector('#figures .alarm dd')"
    with page_process(store.runtime_dir, "hung", ttl=3.0) as hung:
        hung.ask("write", prompt(1))
        assert hung.ask("acquire", "both", prompt(1, 2)) == PART_TOKENS
        hung.signal(signal.SIGSTOP)
        page.wait(f"{alarm}.innerText === '⚠ {PART_PAGES} slots'")
        first = "document.querySelector('#lease-table tbody tr')"
        page.wait(f"{first}.innerText.includes('hung')")
        assert "past its time" in page.look(f"{first}.innerText")
        page.wait("document.querySelector('#tiers').innerText.includes('in quarantine')")
    page.wait(f"{alarm} === null")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_it_fits_the_window(
    page: Browser, tmp_path: Path, size: tuple[int, int], scheme: str
) -> None:
    """The page needs no sideways scrolling, and the test keeps a picture of it."""
    page.prefer(scheme)
    page.resize(*size)
    page.wait(f"innerWidth === {size[0]}")
    page.wait(f"document.querySelector('.icicle').clientWidth <= {size[0]}")
    assert page.look("document.scrollingElement.scrollWidth") == size[0]
    page.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000
    dark = page.look("getComputedStyle(document.body).backgroundColor") == "rgb(18, 24, 27)"
    assert dark == (scheme == "dark")
    page.prefer("light")
    page.resize(*WIDE)


def test_another_version_s_page_takes_its_place(page: Browser) -> None:
    """The page reloads if the server has another version."""
    page.look("""(() => {
        const real = window.fetch;
        window.fetch = async (...asked) => {
            const said = await (await real(...asked)).text();
            return new Response(said.replace(/"version":"[^"]*"/, '"version":"another"'));
        };
        return true;
    })()""")
    page.wait("!window.fetch.toString().includes('another')")
    page.wait("document.querySelector('#whoami').textContent.startsWith('version')")


def test_nothing_is_complained_of_and_nothing_leaves_the_host(page: Browser) -> None:
    """After all tests there is no error in the console and no request to another host."""
    own = page.look("location.origin")
    page.look("1")
    assert len(page.requests) > 20
    assert [each for each in page.requests if not each.startswith(own)] == []
    assert page.complaints == []
