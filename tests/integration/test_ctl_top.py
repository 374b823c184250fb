"""kvstore-ctl top, savings and identity on a store in use."""

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event, Thread

import pytest
from typer.testing import CliRunner, Result

from kvstore_client import ClientConfig, Namespace
from kvstore_client.testing import RunningStore, running_store, wait_until
from kvstore_ctl.app import app
from pages.stamped_pages import (
    IDENTITY,
    LAYOUT,
    SMALL_STORE,
    TOKENS,
    open_client,
    write_and_insert,
)

LIMIT = 30.0
# What a match of these finds: all whole pages.
FOUND = len(TOKENS) // LAYOUT.page_tokens * LAYOUT.page_tokens
SHARE = FOUND / len(TOKENS)
pytestmark = pytest.mark.store(*SMALL_STORE)


@pytest.fixture(scope="module")
def namespace(store: RunningStore) -> Iterator[Namespace]:
    """Provides a namespace in which a worker matches the same prompt all the time."""
    config = ClientConfig(display_name="busy", call_timeout=LIMIT)
    client, namespace = open_client(store.runtime_dir, config)
    other = client.namespace(replace(IDENTITY, salt=b"idle"), LAYOUT)
    assert other.wait_open(LIMIT)
    write_and_insert(namespace, TOKENS)
    for _ in range(50):
        namespace.match(TOKENS).release()
    done = Event()

    def match() -> None:
        while not done.wait(0.005):
            namespace.match(TOKENS).release()

    thread = Thread(target=match)
    thread.start()
    yield namespace
    done.set()
    thread.join()
    client.close()


@pytest.fixture(scope="module")
def idle() -> Iterator[RunningStore]:
    """Provides an idle store."""
    with running_store(*SMALL_STORE) as running:
        yield running


def run(store: RunningStore, *arguments: str) -> Result:
    """Runs a command, with the store's folder before the command."""
    return CliRunner().invoke(app, ["--runtime-dir", str(store.runtime_dir), *arguments])


def busy_frame(store: RunningStore, matched: Callable[[str], bool], *options: str) -> str:
    """Returns the first frame whose interval has a match."""
    frames: list[str] = []

    def is_busy() -> bool:
        result = run(store, "top", "--once", *options)
        assert result.exit_code == 0, result.output
        frames.append(result.stdout)
        return matched(frames[-1])

    assert wait_until(is_busy), frames[-1]
    return frames[-1]


def test_a_frame_has_what_changed(store: RunningStore, namespace: Namespace) -> None:
    """A frame has the rates of the store, the namespaces and the leases, the busiest first."""

    def matched(shown: str) -> bool:
        return bool(json.loads(shown)["now"]["lookups_per_second"])

    frame = json.loads(busy_frame(store, matched, "--interval", "0.5", "--json"))
    busy, idle = frame["namespaces"]
    assert busy["namespace_id"] == namespace.namespace_id.hex()
    assert idle["lookups_per_second"] == 0
    for each in (frame["now"], busy, frame["leases"][0]):
        assert each["hit_rate"] == pytest.approx(SHARE)
        assert each["seconds"] >= 0.5
        lookups = each["lookups_per_second"]
        assert lookups > 0
        assert each["saved_tokens_per_second"] == pytest.approx(lookups * FOUND)
    assert frame["overall"]["hit_rate"] < SHARE


@pytest.mark.usefixtures("namespace")
def test_frames_are_counted(store: RunningStore) -> None:
    """JSON frames are one line each, and their intervals do not overlap."""
    result = run(store, "top", "--count", "2", "--interval", "0.1", "--json")
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert second["uptime"] - first["uptime"] == pytest.approx(second["now"]["seconds"])


@pytest.mark.usefixtures("namespace")
def test_a_frame_is_plain_text_in_a_file(store: RunningStore) -> None:
    """A frame in a file is plain text with bars and without control characters."""

    def matched(shown: str) -> bool:
        return "hit rate now -" not in shown

    text = busy_frame(store, matched, "--interval", "0.3", "--sort", "hits")
    assert "sorted by hits" in text
    assert "tier 1  [" in text
    assert "busy" in text
    assert "\x1b" not in text
    assert "hit rate now 94.1%" in text


def test_a_column_that_is_none_is_status_two(store: RunningStore) -> None:
    """An unknown column is a wrong command line, and the error lists the known ones."""
    result = run(store, "top", "--once", "--sort", "size")
    assert (result.exit_code, "evictions" in result.stderr) == (2, True)


@pytest.mark.usefixtures("namespace")
def test_what_was_saved_is_counted(store: RunningStore) -> None:
    """Savings are computed from the store's counters, with seconds if a speed is given."""
    result = run(store, "savings", "--prefill-rate", "100", "--json")
    whole, busy, idle = json.loads(result.stdout)
    assert whole["of"] == "all namespaces"
    assert (whole["share_saved"], busy["share_saved"]) == (
        pytest.approx(SHARE, abs=0.1),
        pytest.approx(SHARE, abs=0.1),
    )
    assert whole["seconds_saved"] == pytest.approx(whole["tokens_saved"] / 100)
    assert idle["tokens_without"] == 0
    text = run(store, "savings", "--namespace", "ti").stdout
    assert "all namespaces" not in text
    assert "Seconds are unknown" in text


def test_seconds_saved_are_by_what_engines_say(store: RunningStore, namespace: Namespace) -> None:
    """Saved seconds count each token at the speed that its engine gave, and how many those were."""
    client, engine = open_client(store.runtime_dir)
    before = client.admin.stats().counters
    engine.prefill_tokens_per_second = 100.0
    with engine.match(TOKENS) as match:
        assert match.token_count == FOUND
    after = client.admin.stats().counters
    client.close()
    engine.prefill_tokens_per_second = 0.0
    assert after.timed_token_count - before.timed_token_count == FOUND
    assert after.saved_prefill_us - before.saved_prefill_us == FOUND * 10_000
    (row,) = json.loads(
        run(store, "savings", "--namespace", namespace.namespace_id.hex(), "--json").stdout
    )
    assert row["seconds_saved"] == pytest.approx(FOUND / 100)
    assert f"Seconds cover {FOUND} of the " in run(store, "savings").stdout


def test_the_calculator_asks_no_store() -> None:
    """The calculator of savings works without a store."""
    arguments = ["savings", "--shared", "2000", "--suffix", "100", "--requests", "50"]
    arguments += ["--runtime-dir", "/nowhere"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    (row,) = json.loads(result.stdout)
    assert (row["tokens_without"], row["tokens_with"], row["speed_up_bound"]) == (105000, 7000, 15)
    text = CliRunner().invoke(app, [*arguments, "--prefill-rate", "4000"]).stdout
    assert "at most 15.00 times" in text
    assert "24.5" in text


def test_what_sets_namespaces_apart_is_told(store: RunningStore, namespace: Namespace) -> None:
    """Identity shows each namespace's factors, and the one in which two namespaces differ."""
    result = run(store, "identity", "--json")
    answer = json.loads(result.stdout)
    assert {each["factors"]["model"] for each in answer["namespaces"]} == {b"model".hex()}
    assert [each["factors"] for each in answer["differences"]] == [["salt"]]
    text = run(store, "identity").stdout
    assert "so the salts differ" in text
    one = run(store, "identity", namespace.namespace_id.hex(), "--json")
    assert json.loads(one.stdout)["differences"] == []


def test_the_folder_stands_before_or_after(
    store: RunningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder after the command has priority, then one before it, then the environment."""
    folder = str(store.runtime_dir)
    monkeypatch.setenv("KVSTORE_RUNTIME_DIR", "/nowhere")
    assert run(store, "leases").exit_code == 0
    before = ["--runtime-dir", "/nowhere", "leases", "--runtime-dir", folder]
    assert CliRunner().invoke(app, before).exit_code == 0
    monkeypatch.setenv("KVSTORE_ADDRESS", "127.0.0.1:1")
    assert run(store, "leases").exit_code == 0
    assert run(store, "token").exit_code == 0
    both = ["--address", "127.0.0.1:1", "--runtime-dir", folder, "leases"]
    assert CliRunner().invoke(app, both).exit_code == 2


def test_an_idle_and_empty_store_is_shown(idle: RunningStore) -> None:
    """An idle store without namespaces is shown without an error or a rate."""
    result = run(idle, "top", "--once", "--interval", "0.1")
    assert (result.exit_code, "hit rate now -, overall -" in result.stdout) == (0, True)
    for command in (["savings"], ["identity"], ["tree"]):
        assert run(idle, *command).exit_code == 0


def heard(terminal: int) -> Iterator[bytes]:
    """Yields a terminal's output until its other end closes or nothing arrives."""
    while select.select([terminal], [], [], LIMIT)[0]:
        try:
            yield os.read(terminal, 65536)
        except OSError:
            return


def test_a_last_frame_names_no_keys(idle: RunningStore) -> None:
    """The last frame has no key help, because the program that reads keys has ended."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kvstore_ctl", "top", "--once", "--interval", "0.1"]
    environment = {**os.environ, "KVSTORE_RUNTIME_DIR": str(idle.runtime_dir), "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        shown = b"".join(heard(ours))
        assert process.wait(LIMIT) == 0, shown
    finally:
        process.kill()
        os.close(ours)
    assert b"by the store's clock" in shown
    assert b"q quits" not in shown


def test_a_terminal_is_shown_frames_in_place(idle: RunningStore) -> None:
    """In a terminal s changes the sort column, q quits, and a store that restarts is waited for."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kvstore_ctl", "top", "--interval", "0.1"]
    environment = {**os.environ, "KVSTORE_RUNTIME_DIR": str(idle.runtime_dir), "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    acts: list[tuple[bytes, Callable[[], object]]] = [
        (b"sorted by tokens", lambda: os.write(ours, b"s")),
        (b"sorted by lookups", idle.kill),
        (b"no answer, trying again", idle.start),
        (b"by the store's clock", lambda: os.write(ours, b"q")),
    ]
    try:
        for part in heard(ours):
            shown += part
            if acts and acts[0][0] in shown:
                acts.pop(0)[1]()
                shown = b""
        assert process.wait(LIMIT) == 0, shown
    finally:
        process.kill()
        os.close(ours)
    assert acts == []
