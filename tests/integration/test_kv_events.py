"""KV events of a real server, as real subscribers get them."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq

from kv_events.consumer import Consumer
from kvstore_client import Client, ClientConfig
from kvstore_client.testing import RunningStore, running_store, wait_until
from pages.stamped_pages import (
    LAYOUT,
    LIMIT,
    SMALL_STORE,
    TOKENS,
    open_client,
    prompt,
    write_and_insert,
)
from processes.holder_folder import HolderFolder

EVENTS = (*SMALL_STORE, "--kv-events")
# More than fit into 32 pages; some begin alike.
PROMPTS = [prompt(*parts) for parts in ((2, 3), (2, 4), (5,), (6, 7), (8,), (2, 3, 9), (10, 11))]
WIDTH = LAYOUT.page_tokens
ADDRESSES = re.compile(r"kv_events_published .*?\bendpoint=(\S+).*?replay_endpoint=(\S+)")

Starter = Callable[..., RunningStore]
Subscriber = Callable[[RunningStore], Consumer]


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the number of the last batch in the test's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)


@pytest.fixture
def starts() -> Iterator[Starter]:
    """Starts servers that publish events."""
    with ExitStack() as stack:
        yield lambda *more: stack.enter_context(running_store(*EVENTS, *more))


@pytest.fixture
def subscribes() -> Iterator[Subscriber]:
    """Makes subscribers of servers."""
    with ExitStack() as stack:

        def subscribe(store: RunningStore, **settings: object) -> Consumer:
            consumer = Consumer(*addresses_of(store), **settings)  # type: ignore[arg-type]  # any
            stack.callback(consumer.close)
            return consumer

        yield subscribe


def addresses_of(store: RunningStore) -> tuple[str, str]:
    """Returns the addresses that a server's log names last."""
    if wait_until(lambda: ADDRESSES.search(store.log) is not None, 0.5):
        events, replay = ADDRESSES.findall(store.log)[-1]
        return events, replay
    # It binds them with the first block.
    folder = store.runtime_dir / "kv-events"
    return f"ipc://{folder}/uid-{os.geteuid()}.pub", f"ipc://{folder}/uid-{os.geteuid()}.replay"


def fill(store: RunningStore, *prompts: list[int]) -> None:
    """Inserts prompts from a client, which leaves."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        for tokens in prompts:
            write_and_insert(namespace, tokens)


def longest(consumer: Consumer, tokens: list[int]) -> int:
    """Returns how many tokens of a prompt a consumer knows to be there."""
    there, width = consumer.prefixes("GPU"), WIDTH
    content = b"".join(token.to_bytes(4, "little") for token in tokens)
    count = 0
    while content[: 4 * (count + width)] in there:
        count += width
    return count


def agrees(store: RunningStore, consumer: Consumer, prompts: list[list[int]]) -> bool:
    """Returns whether a consumer comes to know as much of each prompt as the store has."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        peeked = [namespace.peek(tokens) // WIDTH * WIDTH for tokens in prompts]

    def look() -> bool:
        consumer.receive(50)
        return [longest(consumer, tokens) for tokens in prompts] == peeked

    return wait_until(look)


def test_a_subscriber_knows_what_the_store_has(starts: Starter, subscribes: Subscriber) -> None:
    """After evictions and a removal; its longest prefixes are those of a peek."""
    store = starts()
    consumer = subscribes(store)
    fill(store, *PROMPTS)
    assert agrees(store, consumer, PROMPTS)
    assert consumer.prefixes("GPU")
    with Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
        assert wait_until(lambda: client.connected)
        [listed] = client.admin.namespaces()
        client.admin.evict_prefix(listed.namespace_id, PROMPTS[-1][:4])
        [stats] = client.admin.stats().kv_events
    assert stats.endpoint == consumer.events
    assert stats.last_batch_number > consumer.last - 100
    assert stats.removed_copy_count > 0
    assert stats.stored_copy_count > stats.removed_copy_count
    assert (stats.snapshot_count, stats.lost_change_count) == (1, 0)
    assert agrees(store, consumer, PROMPTS)
    late = subscribes(store)
    assert agrees(store, late, PROMPTS)


def test_a_killed_server_s_blocks_are_cleared(starts: Starter, subscribes: Subscriber) -> None:
    """Its memory is gone. A subscriber goes on with the next server by itself."""
    store = starts()
    consumer = subscribes(store)
    fill(store, TOKENS)
    assert agrees(store, consumer, [TOKENS])
    assert consumer.prefixes("GPU")
    number = consumer.last
    store.restart()
    fill(store, PROMPTS[2])
    assert agrees(store, consumer, [TOKENS, PROMPTS[2]])
    assert consumer.last > number
    assert longest(consumer, TOKENS) == 0


def test_recovered_blocks_keep_their_names(
    tmp_path: Path, starts: Starter, subscribes: Subscriber
) -> None:
    """A server that goes on with the memory lists all of it under the same names."""
    with HolderFolder(tmp_path / "holder") as holder:
        store = starts("--holder", str(holder.path), "--no-holder-start")
        consumer = subscribes(store)
        fill(store, *PROMPTS)
        assert agrees(store, consumer, PROMPTS)
        before, snapshots = dict(consumer.blocks[0].known), consumer.snapshots
        store.restart()
        assert wait_until(lambda: consumer.receive(50) and consumer.snapshots > snapshots)
        assert agrees(store, consumer, PROMPTS)
        assert consumer.blocks[0].known == before
        late = subscribes(store)
        assert agrees(store, late, PROMPTS)
        assert late.blocks[0].known == before


@pytest.mark.parametrize("form", ["map", "array"])
def test_events_over_tcp_are_for_who_says_so(
    starts: Starter, subscribes: Subscriber, form: str
) -> None:
    """On ports of which the log names the second too."""
    store = starts(
        *("--kv-events-bind", "tcp://127.0.0.1:0", "--kv-events-insecure"),
        *("--kv-events-format", form, "--kv-events-topic", "kv@here@tiny"),
    )
    assert "kv_events_insecure" in store.log
    consumer = subscribes(store, topic="kv@here@tiny", replays_topic=form == "map")  # type: ignore[call-arg]  # any
    assert consumer.events.startswith("tcp://127.0.0.1:")
    fill(store, *PROMPTS)
    assert agrees(store, consumer, PROMPTS)


def test_only_consumers_with_a_key_connect(
    tmp_path: Path, starts: Starter, subscribes: Subscriber
) -> None:
    """The tenant's key in the tenants file opens its events and replays; no other does."""
    server, mine, other = (zmq.curve_keypair() for _ in range(3))
    secret, tenants = tmp_path / "server.key", tmp_path / "tenants.toml"
    for path, text in (
        (secret, server[1].decode()),
        (
            tenants,
            f"[tenants.team]\nuids = [{os.geteuid()}]\nkv_events_keys = ['{mine[0].decode()}']\n",
        ),
    ):
        path.touch(mode=0o600)
        path.write_text(text, encoding="ascii")
    store = starts(
        *("--kv-events-bind", "tcp://127.0.0.1:0", "--kv-events-key-file", str(secret)),
        *("--tenants-file", str(tenants)),
    )
    assert server[0].decode() in store.log
    assert server[1].decode() not in store.log
    strangers = [
        subscribes(store, curve=(server[0], *other)),  # type: ignore[call-arg]  # any
        subscribes(store),
    ]
    consumer = subscribes(store, curve=(server[0], *mine))  # type: ignore[call-arg]  # any
    fill(store, *PROMPTS)
    assert agrees(store, consumer, PROMPTS)
    assert consumer.replays > 0
    assert [each.receive(500) for each in strangers] == [False, False]


def test_who_stops_reading_delays_nobody(starts: Starter, subscribes: Subscriber) -> None:
    """Neither the store nor another subscriber."""
    store = starts()
    consumer = subscribes(store)
    with zmq.Context() as context, context.socket(zmq.SUB) as stuck:
        stuck.setsockopt(zmq.SUBSCRIBE, b"")
        stuck.rcvhwm = 1
        stuck.connect(consumer.events)
        for _ in range(20):
            fill(store, *PROMPTS)
        assert agrees(store, consumer, PROMPTS)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ["--kv-events", "--kv-events-bind", "tcp://127.0.0.1:5557"],
            r"tcp://127\.0\.0\.1:5557: whoever connects would read .* --kv-events-insecure",
        ),
        (
            [
                *("--kv-events", "--kv-events-bind", "tcp://127.0.0.1:5557"),
                *("--kv-events-insecure", "--kv-events-key-file", "/x"),
            ],
            "is for TCP without kv_events_key_file",
        ),
        (["--kv-events", "--kv-events-key-file", "/nowhere"], "kv_events_key_file /nowhere: No"),
        (["--kv-events-bind", "ipc:///run/x"], "kv_events_bind without kv_events"),
        (["--kv-events", "--kv-events-bind", "udp://x"], r"tcp://HOST:PORT or ipc:///PATH"),
        (
            ["--kv-events", "--kv-events-bind", "ipc:///a,ipc:///b"],
            "two addresses of one tenant",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(arguments: list[str], why: str) -> None:
    """With the way out."""
    command = [sys.executable, "-m", "kvstore", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert re.search(why, result.stderr), result.stderr


def test_an_address_in_use_is_refused(tmp_path: Path) -> None:
    """With its name."""
    with zmq.Context() as context, context.socket(zmq.PUB) as taken:
        port = taken.bind_to_random_port("tcp://127.0.0.1")
        address = f"tcp://127.0.0.1:{port}"
        command = [sys.executable, "-m", "kvstore", "--runtime-dir", str(tmp_path / "run")]
        command += ["--kv-events", "--kv-events-bind", address, "--kv-events-insecure"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert f"kv_events_bind {address}: Address already in use" in result.stderr
