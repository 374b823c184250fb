"""A server that is killed and restarted: its workers miss, and then use the successor."""

from threading import Thread

import pytest

from kvstore_client import Client, ClientConfig, Match, errors
from kvstore_client.config import MAX_CALL_TIMEOUT
from kvstore_client.testing import wait_until
from pages.stamped_pages import IDENTITY, LAYOUT, page_count, prompt
from processes.worker_fleet import Fleet

HELD = prompt(1, 2)
PROMPTS = [prompt(3, number) for number in range(8)]
LIMIT = 30.0
FAILURES = {"StoreUnavailable", "StoreTimedOut"}


def test_workers_outlive_their_server(fleet: Fleet) -> None:
    """Workers miss without the server and share its successor. Held old pages stay readable."""
    holder, *workers = (fleet.spawn(name) for name in "abc")
    holder.ask("write", HELD)
    assert holder.ask("match", "held", HELD) == len(HELD) - 1
    written = holder.ask("check", "held")
    epoch = holder.ask("epoch")
    assert [each.ask("epoch") for each in workers] == [epoch, epoch]
    holder.tell("watch", "held")
    for each in workers:
        each.tell("churn", PROMPTS, 0)
    assert wait_until(lambda: fleet.stats().counters.full_hit_count > 0)

    # In the middle of their requests, and then for whole requests, there is no server.
    fleet.store.kill()
    for each in workers:
        tally = each.stop()
        assert set(tally) <= {"looks", "hits", "misses", "published"} | FAILURES
        tally = each.ask("churn", PROMPTS, 1)
        assert (tally["misses"], tally["hits"], tally["published"]) == (len(PROMPTS), 0, 0)
        assert sum(tally[key] for key in FAILURES) == len(PROMPTS)
        assert each.ask("epoch") is None

    # Its successor has another epoch and is empty; those who hold nothing use it by themselves.
    fleet.store.start()
    assert wait_until(lambda: all(each.ask("epoch") is not None for each in workers))
    (successor,) = {each.ask("epoch") for each in workers}
    assert successor not in (None, epoch)
    assert fleet.stats().store_epoch == successor
    assert wait_until(lambda: workers[0].ask("write", PROMPTS[0])["published"] > 0)
    assert wait_until(lambda: len(workers[1].ask("stamps", PROMPTS[0])) == page_count(PROMPTS[0]))
    assert {stamp.writer for stamp in workers[1].ask("stamps", PROMPTS[0])} == {"b"}
    assert all(each.ask("churn", PROMPTS, 3)["hits"] >= 2 * len(PROMPTS) for each in workers)
    assert workers[0].ask("peek", HELD) == 0
    assert fleet.leases("a") == []

    # Its slots are other memory: what the holder has of the old server's is as it was.
    assert holder.stop() > 0
    assert holder.ask("check", "held") == written
    assert (holder.ask("epoch"), holder.ask("mappings")) == (None, 1)

    # And when it lets go it is back as well, with the pages of the others.
    holder.ask("release", "held")
    assert wait_until(lambda: holder.ask("epoch") == successor)
    assert wait_until(lambda: len(holder.ask("stamps", PROMPTS[-1])) == page_count(PROMPTS[-1]))
    assert [each.ask("mappings") for each in (holder, *workers)] == [1, 1, 1]
    assert fleet.settled()


def test_what_was_reserved_before_is_nothing_after(fleet: Fleet) -> None:
    """A reservation of the old epoch cannot publish in the new one. Its slots stay untouched."""
    worker, other = fleet.spawn("worker"), fleet.spawn("other")
    worker.ask("acquire", "open", HELD)
    worker.ask("fill", "open")
    fleet.store.restart()
    with pytest.raises(errors.StoreError):
        worker.ask("insert", "open", 0, page_count(HELD))
    assert wait_until(lambda: other.ask("epoch") is not None)
    assert wait_until(lambda: other.ask("churn", PROMPTS, 1)["published"] > 0)
    assert worker.ask("own_pages_are_untouched", "open")
    assert other.ask("peek", HELD) == 0
    worker.ask("release", "open")
    assert wait_until(lambda: worker.ask("epoch") == other.ask("epoch"))
    assert fleet.settled()


def test_no_request_waits_for_a_server_that_is_known_to_be_dead(fleet: Fleet) -> None:
    """A request that waits for earlier releases misses as soon as the server is killed."""
    fleet.spawn("writer").ask("write", HELD)
    config = ClientConfig(call_timeout=MAX_CALL_TIMEOUT)
    with Client(fleet.store.runtime_dir, config) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert namespace.wait_open(LIMIT)
        match: Match = namespace.match(HELD)
        failures: list[errors.StoreError | None] = []

        def request() -> None:
            """Asks for what needs the release to be through."""
            with namespace.acquire(HELD, total_page_count=page_count(HELD)) as acquired:
                failures.append(acquired.failure)

        session = client._connector.session
        assert session is not None
        fleet.store.suspend()
        match.release()
        thread = Thread(target=request, daemon=True)
        thread.start()
        assert wait_until(lambda: session._holds == 1)
        fleet.store.kill()
        thread.join(LIMIT)
        assert not thread.is_alive()
        assert [type(each) for each in failures] == [errors.StoreUnavailable]
        fleet.store.start()
