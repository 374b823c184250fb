"""Two servers on one store: hits of what the other stored, and of nothing else."""

from dataclasses import replace

from rig.options import PAGE_TOKENS
from rig.pair import Pair, pair
from rig.world import World

from engine_cases.prompts import Prompt, prompt, prompts
from engine_cases.store import Store
from support.sglang.store_flags import HICACHE

ASKED = prompts(1, 100, 500, 1_000, 1_500)
ALIGNED = prompt(2, 640)
TAIL = prompt(3, 300)
# A server has its beginning in its own tree when it is asked for all of it.
GROWN = prompt(4, 1_200)
GROWN_HEAD = GROWN.head(700)
SHARED_TOKENS = 768
WHOLE = prompt(5, 1_500)
PARTED = WHOLE.head(SHARED_TOKENS + 9).then(TAIL)
TALKED = replace(prompt(6, 990), answer_tokens=60)
MANY = [ASKED[2].then(prompt(50 + number, 150)) for number in range(16)]
KEY = "another group's"
SALTED = [replace(each, salt=KEY) for each in prompts(7, 300, 700)]
# Too short to share a page: its request opens the key's namespace, which takes a moment.
OPENER = replace(prompt(8, 10), salt=KEY)
COLD = prompts(9, *(1_200,) * 4)
STOPS = (0, 1, 3, 8)
ABORTED = [replace(each, abort_after=stop) for each in ASKED for stop in STOPS]
ABORTED += [replace(each, abort_after=stop) for each, stop in zip(COLD, STOPS, strict=True)]


def learn_sharing(world: World) -> None:
    """Asks the reference all that the cases need."""
    plain = [*ASKED, ALIGNED, GROWN, GROWN_HEAD, WHOLE, PARTED, *MANY, *SALTED, OPENER, *COLD]
    world.reference.answers(plain)
    world.reference.answers([_talked_on(world)])


def sharing(world: World, store: Store) -> None:
    """Runs the cases of two servers."""
    with pair(world, store) as servers:
        _hits(servers)
        _own_tree(servers)
        _keys(servers)
        _at_once(servers)
        _aborts(servers)
        _flushed(servers)


def _talked_on(world: World) -> Prompt:
    """Returns the next turn of a conversation: a prompt, its answer, and more."""
    [answer] = world.reference.answers([TALKED])
    return replace(TALKED, tokens=TALKED.tokens + answer.tokens, answer_tokens=12).then(TAIL)


def _hits(servers: Pair) -> None:
    world, first, second = servers.world, servers.first, servers.second
    with servers.case("cold") as case:
        servers.check(case, first, ASKED)
        case.require(case.loaded == 0, "an empty store gave pages")
        servers.pages.wait(case)
    with servers.case("whole hit of what the other server stored") as case:
        servers.hit(case, second, ASKED, world.wholes(ASKED))
    with servers.case("partial hit") as case:
        servers.fill(case, first, [WHOLE])
        servers.hit(case, second, [PARTED], SHARED_TOKENS)
    with servers.case("prompt that ends at a page's end") as case:
        servers.fill(case, first, [ALIGNED])
        # SGLang computes the last token, and so the last page.
        servers.hit(case, second, [ALIGNED], world.whole(640))
    with servers.case("goes on after an answer of the other server") as case:
        servers.fill(case, first, [TALKED])
        shared = (len(TALKED.tokens) + TALKED.answer_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS
        servers.hit(case, second, [_talked_on(world)], shared)


def _own_tree(servers: Pair) -> None:
    world, first, second = servers.world, servers.first, servers.second
    with servers.case("own tree: nothing left to load") as case:
        found = servers.check(case, second, ASKED)
        wanted = world.wholes(ASKED)
        case.require(found.own == wanted, f"{found.own} of {wanted} tokens were in its tree")
        case.require(found.loaded == 0, f"{found.loaded} tokens were loaded again")
        case.note = f"{found.own:,} in its own tree"
    with servers.case("own tree: the rest is loaded") as case:
        servers.fill(case, first, [GROWN])
        servers.hit(case, second, [GROWN_HEAD], world.whole(700))
        servers.hit(case, second, [GROWN], world.whole(1_200) - world.whole(700))


def _keys(servers: Pair) -> None:
    world, first, second = servers.world, servers.first, servers.second
    with servers.case("another key hits nothing") as case:
        servers.check(case, first, [replace(each, salt="somebody's") for each in ASKED])
        case.require(case.loaded == 0, f"{case.loaded} tokens were loaded across keys")
    with servers.case("the same key hits on the other server") as case:
        for each in (first, second):
            servers.check(case, each, [OPENER])
        servers.fill(case, first, SALTED)
        servers.hit(case, second, SALTED, world.wholes(SALTED))


def _at_once(servers: Pair) -> None:
    with servers.case("16 requests on one prefix at once, on both servers") as case:
        servers.first.begin(MANY)
        answers = [*servers.second.ask(MANY), *servers.first.finish()]
        case.compare(answers, servers.world.reference.answers(MANY) * 2)


def _aborts(servers: Pair) -> None:
    with servers.case("aborted before, in and after loads and saves") as case:
        servers.first.begin(ABORTED)
        answers = [*servers.second.ask([*ABORTED, *ASKED]), *servers.first.finish()]
        case.compare(answers, servers.world.reference.answers([*ABORTED, *ASKED, *ABORTED]))
        # An aborted request left whole pages or none.
        for each in (servers.first, servers.second):
            servers.world.check(case, each, COLD)


def _flushed(servers: Pair) -> None:
    world, second = servers.world, servers.second
    if world.options.way == HICACHE:
        with servers.case("flushed: loaded again") as case:
            second.flush()
            servers.hit(case, second, ASKED, world.wholes(ASKED))
        return
    with servers.case("flushed: nothing of before is used") as case:
        second.flush()
        found = world.check(case, second, ASKED)
        case.require(found.own == 0, f"{found.own} tokens were in its tree")
        case.require(found.loaded == 0, f"{found.loaded} tokens of before were loaded")
