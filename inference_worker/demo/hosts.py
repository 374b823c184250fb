"""Two hosts that share one engine: two stores with nothing else in common, and a worker on each.

One host computes a prompt, and the other one's first request of it is a hit. Then the engine is
killed, and requests go on. Each request also runs without the store and on stock transformers.
"""

import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from rich.console import Console

import kvstore_client
from inference_worker.demo.comparison import ACCEPTED_SHARE, ComputedPrompts
from inference_worker.demo.demo import LONGEST, TIER_1_BYTES
from inference_worker.demo.demo_answer import OUTPUT_TOKENS, ask_all_ways
from inference_worker.demo.line_process import LineProcess, reference_process, worker_process
from inference_worker.demo.script import WORKERS, DemoScript, DemoTurn
from inference_worker.demo.table import HOSTS, DemoTable
from inference_worker.demo.valkey_server import ValkeyServer, running_valkey
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.errors import ProcessEndedError, WorkerError
from inference_worker.model.device import threads_for
from inference_worker.model.model import model_folder
from inference_worker.model.tokenizer import load_tokenizer
from kvstore_client.testing import running_store, wait_until
from kvstore_ctl.message_json import plain

# More than the pages of the larger model in this demo.
ENGINE_MEMORY: Final = "1gb"
WRITTEN_WAITS: Final = 3
WRITTEN_SECONDS: Final = 15.0
KEY_BYTES: Final = 32
ENGINE_GONE: Final = "engine gone"


@dataclass(frozen=True)
class EngineOptions:
    """An engine that runs already, or one of our own without a ``url``."""

    url: str | None = None
    credential: Path | None = None


@dataclass
class Host:
    """One host: its worker, its store's statistics, and what was computed on it."""

    worker: LineProcess
    admin: kvstore_client.Admin
    computed: ComputedPrompts = field(default_factory=ComputedPrompts)
    written_pages: int = 0

    def stats(self) -> Any:  # noqa: ANN401 - a message of the protocol
        """Reads the store's statistics once the worker's releases have reached it."""
        self.worker.ask(op="flush")
        return self.admin.stats()


@dataclass
class HostsDemo:
    """One run's processes and what they answered so far. ``computed`` is that of all hosts.

    ``stored`` are the pages that the engine has, each as all tokens through its last one.
    """

    hosts: dict[str, Host]
    reference: LineProcess
    engine: ValkeyServer | None
    table: DemoTable
    rows: list[dict[str, Any]] = field(default_factory=list)
    computed: ComputedPrompts = field(default_factory=ComputedPrompts)
    stored: set[tuple[int, ...]] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)

    def warm_up(self, prompt_ids: list[int]) -> None:
        """Lets each process answer one prompt in each way; these are not in the report."""
        request = {"op": "generate", "prompt_ids": prompt_ids, "max_tokens": OUTPUT_TOKENS}
        for host in self.hosts.values():
            self._await_written(host, prompt_ids, host.worker.ask(**request))
            host.worker.ask(**request, use_store=False)
        self.reference.ask(prompt_ids=prompt_ids, max_tokens=OUTPUT_TOKENS)

    def ask(self, turn: DemoTurn, prompt_ids: list[int], *, kind: str = "") -> list[int]:
        """Runs one request in all three ways, adds its row, and returns its output ids.

        Then waits until the engine has the host's new pages, unless ``kind`` says it is gone.
        A request that fails is counted, and has no output.
        """
        host = self.hosts[turn.worker]
        before = host.admin.stats().counters.loaded_page_count
        try:
            asked = ask_all_ways(host.worker, self.reference, kind or turn.kind, prompt_ids)
        except WorkerError as error:
            self.failures.append(f"{kind or turn.kind} on {turn.worker}: {error}")
            return []
        loaded = (host.admin.stats().counters.loaded_page_count - before) * PAGE_TOKENS
        row = {
            **asked.row,
            "shared_tokens": (host if kind else self).computed.reused(prompt_ids),
            "engine_tokens": loaded,
            "published_by": _source(asked.row["matched_tokens"], loaded),
        }
        answer = asked.answer
        for each in (host.computed, self.computed):
            each.add(prompt_ids + answer["output_ids"][:-1])
        self.rows.append(row)
        self.table.add(row["kind"], row)
        if not kind:
            self._await_written(host, prompt_ids, answer)
        return list(answer["output_ids"])

    def kill_engine(self) -> None:
        """Kills the engine, if it is our own."""
        if self.engine is not None:
            self.engine.kill()

    def _await_written(self, host: Host, prompt_ids: list[int], answer: dict[str, Any]) -> None:
        """Waits until the engine has all whole pages that a request computed."""
        computed = prompt_ids + answer["output_ids"][:-1]
        ends = range(PAGE_TOKENS, len(computed) + 1, PAGE_TOKENS)
        pages = {tuple(computed[:end]) for end in ends} - self.stored
        self.stored |= pages
        host.written_pages += len(pages)

        def written() -> bool:
            return bool(written_pages(host.admin.stats()) >= host.written_pages)

        for _ in range(WRITTEN_WAITS):
            if wait_until(written, WRITTEN_SECONDS):
                return
            # The engine was away for a moment. Pages that it refused are written at their next use;
            # a match uses all whole pages before the last token.
            used = computed if len(computed) % PAGE_TOKENS else [*computed, computed[-1]]
            host.worker.ask(op="generate", prompt_ids=used, max_tokens=1)
        stats = host.admin.stats()
        reasons = (f"{each.reason} {each.count}" for each in stats.remote.refused_pages)
        raise WorkerError(
            f"the engine has {written_pages(stats)} pages of host {host.worker.name}, not "
            f"{host.written_pages}, after {WRITTEN_WAITS} waits of {WRITTEN_SECONDS:g} s; "
            f"refused: {', '.join(reasons) or 'none'}"
        )


def written_pages(stats: Any) -> int:  # noqa: ANN401 - a message of the protocol
    """Returns the pages that a store has written to its remote tier."""
    return int(stats.remote.written_page_count)


def run_hosts_demo(
    model: str, console: Console, engine: EngineOptions, *, threads: int | None = None
) -> dict[str, Any]:
    """Runs the demo of two hosts and returns its report.

    Raises ``NoEngineServerError`` without an engine, ``WorkerError`` if a process fails, and the
    errors of loading the model.
    """
    begun = time.monotonic()
    folder = model_folder(model)
    threads = threads_for(model, threads)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvstore-demo-")))
        log: IO[bytes] = stack.enter_context((place / "processes.log").open("wb"))
        console.print(
            "Starting an engine, two stores with a worker each, and stock transformers. Each "
            "answers another prompt first."
        )
        own = None
        if engine.url is None:
            own = stack.enter_context(
                running_valkey(place / "engine", log=log, memory=ENGINE_MEMORY)
            )
        remote = _remote_arguments(place, own.url if own else str(engine.url), engine.credential)
        hosts = {}
        for name in WORKERS:
            state = place / f"state-{name}"
            state.mkdir(mode=0o700)
            store = stack.enter_context(
                running_store(
                    *("--tier1-bytes", TIER_1_BYTES, "--extent-bytes", TIER_1_BYTES),
                    *(*remote, "--remote-state-dir", str(state)),
                )
            )
            worker = stack.enter_context(
                worker_process(
                    name, str(folder), store.runtime_dir, log=log, longest=LONGEST, threads=threads
                )
            )
            admin = stack.enter_context(kvstore_client.connect_admin(store.runtime_dir))
            hosts[name] = Host(worker, admin)
        reference = stack.enter_context(reference_process(folder, log=log, threads=threads))
        try:
            for process in (*(each.worker for each in hosts.values()), reference):
                process.wait_ready()
        except ProcessEndedError as error:
            tail = (place / "processes.log").read_text(errors="replace")[-4_000:]
            raise WorkerError(f"{error}:\n{tail}") from None
        with DemoTable(console, HOSTS) as table:
            demo = HostsDemo(hosts, reference, own, table)
            report = _play(demo, DemoScript(load_tokenizer(folder)))
    report["seconds"] = round(time.monotonic() - begun, 1)
    for line in hosts_summary(report):
        console.print(line)
    return report


def _remote_arguments(place: Path, url: str, credential: Path | None) -> list[str]:
    """Returns the server's arguments for the engine, with a key that only this demo has."""
    key = place / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(KEY_BYTES))
    more = ["--remote-credential-file", str(credential)] if credential else []
    return [
        *("--remote-url", url, "--remote-key-file", str(key), "--remote-trust-uids"),
        *("--remote-write", "through", *more),
    ]


def _play(demo: HostsDemo, script: DemoScript) -> dict[str, Any]:
    demo.warm_up(script.warm_up())
    for turn in script.questions():
        demo.ask(turn, script.document + turn.ids)
    history = list(script.document)
    for turn in script.chat():
        history += turn.ids
        history += demo.ask(turn, history)
    demo.kill_engine()
    killed = demo.engine is not None
    last = script.last_words()
    if killed:
        for name in WORKERS:
            turn = DemoTurn(name, last.kind, last.text, last.ids)
            # The first prompt is one that each host has, the second one that no host has.
            for prompt in (script.document, script.document[::-1]):
                demo.ask(turn, prompt + last.ids, kind=ENGINE_GONE)
    stats = {name: host.stats() for name, host in demo.hosts.items()}
    held = [
        arena.reserved_slot_count + arena.quarantined_slot_count
        for each in stats.values()
        for arena in each.arenas
    ]
    return {
        "hosts": len(demo.hosts),
        "requests": demo.rows,
        "engine_killed": killed,
        "failures": demo.failures,
        "failed": len(demo.failures),
        "slots_leaked": sum(held),
        "pins_leaked": sum(each.pin_count for each in stats.values()),
        "near_tie_tokens": sum(row["near_tie_tokens"] for row in demo.rows),
        "output_tokens": sum(len(row["output_ids"]) for row in demo.rows),
        "stats": {name: plain(each) for name, each in stats.items()},
    }


def _source(matched: int, loaded: int) -> str | None:
    """Returns where the pages of a hit came from."""
    own = ["own"] if matched > loaded else []
    engine = ["engine"] if loaded else []
    return "+".join(engine + own) or None


def in_pages(row: dict[str, Any]) -> int:
    """Returns the tokens of a request that other hosts can find: those in whole pages."""
    shared: int = row["shared_tokens"]
    return shared // PAGE_TOKENS * PAGE_TOKENS


def hosts_verdict(report: dict[str, Any]) -> list[str]:
    """Returns the faults of a report in sentences; empty if the demo succeeded.

    Other hosts find whole pages, so the last tokens of a shared prefix may be computed again. A
    load that is cut by its deadline, as on a busy machine, is a shorter hit. It is no fault if it
    has half of the pages.
    """
    wrong = [f"failed: {each}" for each in report["failures"]]
    for row in report["requests"]:
        where = f"{row['kind']} on {row['worker']}"
        if not row["identical"]:
            wrong.append(f"{where}: other tokens than stock transformers'")
        reused, least = row["matched_tokens"] + row["copied_tokens"], in_pages(row)
        if reused < least / 2:
            wrong.append(f"{where}: {reused} tokens reused of {least} in shared pages")
    if report["near_tie_tokens"] > ACCEPTED_SHARE * report["output_tokens"]:
        wrong.append(f"{report['near_tie_tokens']} near ties are too many")
    wrong += [
        f"host {name} loaded nothing from the engine"
        for name in WORKERS
        if not any(row["engine_tokens"] for row in report["requests"] if row["worker"] == name)
    ]
    gone = sum(row["kind"] == ENGINE_GONE for row in report["requests"])
    if report["engine_killed"] and not gone:
        wrong.append("no request was answered after the engine was killed")
    if report["slots_leaked"]:
        wrong.append(f"{report['slots_leaked']} slots leaked")
    if report["pins_leaked"]:
        wrong.append(f"{report['pins_leaked']} pins leaked")
    return wrong


def hosts_summary(report: dict[str, Any]) -> list[str]:
    """Returns sentences about the table."""
    rows = report["requests"]
    identical = sum(row["identical"] for row in rows)
    across = [row for row in rows if row["engine_tokens"]]
    tokens = sum(row["engine_tokens"] for row in across)
    gone = sum(row["kind"] == ENGINE_GONE for row in rows)
    same = f"Output tokens identical to stock transformers in {identical} of {len(rows)} requests"
    ties = f"{report['near_tie_tokens']} near ties in {report['output_tokens']} tokens"
    lines = [
        f"{same} ({ties}).",
        f"{len(across)} requests loaded {tokens:,} tokens that the other host had computed.",
    ]
    short = sum(row["matched_tokens"] + row["copied_tokens"] < in_pages(row) for row in rows)
    if short:
        lines.append(f"In {short} requests the deadline cut the load from the engine short.")
    if report["engine_killed"]:
        lines.append(f"After the engine was killed {gone} requests were answered.")
    lines.append(
        f"Failed: {report['failed']}. Left over: {report['slots_leaked']} slots and "
        f"{report['pins_leaked']} pins."
    )
    return lines
