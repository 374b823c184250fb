"""The main job, end to end: a store, two workers with a model, and stock transformers beside.

Each request runs on a worker through the store, on the same worker without it, and on stock
transformers, one after the other. Then worker B is killed (SIGKILL, right after the first insert
of a request) and A answers what B was asked.
What is reused has to be every token that was computed before, whatever the pages, and the same
question a second time has to run nothing before its first token.
"""

import signal
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from rich.console import Console

import kvstore_client
from inference_worker.demo.comparison import ACCEPTED_SHARE, ComputedPrompts
from inference_worker.demo.demo_answer import OUTPUT_TOKENS, ask_all_ways
from inference_worker.demo.line_process import LineProcess, reference_process, worker_process
from inference_worker.demo.script import AGAIN, WORKERS, DemoScript, DemoTurn
from inference_worker.demo.table import DemoTable, summary
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.errors import ProcessEndedError, WorkerError
from inference_worker.model.device import find_device, threads_for
from inference_worker.model.model import model_folder
from inference_worker.model.names import CPU
from inference_worker.model.tokenizer import load_tokenizer
from kvstore_client.testing import running_store
from kvstore_ctl.message_json import plain

# The document, the longest chat, and what they are answered with.
LONGEST: Final = 4_096
# Twice what the demo's pages take with the larger model.
TIER_1_BYTES: Final = "512MiB"
# How long the store is given to notice a death that it is told of at once.
NOTICE_SECONDS: Final = 30.0


@dataclass
class Demo:
    """One run's processes and what they answered so far."""

    workers: dict[str, LineProcess]
    reference: LineProcess
    admin: kvstore_client.Admin
    table: DemoTable
    rows: list[dict[str, Any]] = field(default_factory=list)
    published: dict[tuple[int, int], str] = field(default_factory=dict)
    computed: ComputedPrompts = field(default_factory=ComputedPrompts)

    def warm_up(self, prompt_ids: list[int]) -> None:
        """Lets each process answer one prompt in each way; these are not in the report."""
        request = {"op": "generate", "prompt_ids": prompt_ids, "max_tokens": OUTPUT_TOKENS}
        for name, worker in self.workers.items():
            self._note_published(name, worker.ask(**request))
            worker.ask(**request, use_store=False)
        self.reference.ask(prompt_ids=prompt_ids, max_tokens=OUTPUT_TOKENS)

    def ask(self, turn: DemoTurn, prompt_ids: list[int]) -> list[int]:
        """Runs one request in all three ways, adds its row, and returns its output ids."""
        asked = ask_all_ways(self.workers[turn.worker], self.reference, turn.kind, prompt_ids)
        answer = asked.answer
        # In prefix order, each publisher once.
        reused = [*answer["matched_pages"], answer["source_page"]]
        names = [self.published[tuple(page)] for page in reused if page is not None]
        self._note_published(turn.worker, answer)
        shared = self.computed.reused(prompt_ids)
        computed = prompt_ids + answer["output_ids"][:-1]
        self.computed.add(computed, len(prompt_ids), len(computed))
        row = {
            **asked.row,
            "shared_tokens": shared,
            "published_by": "+".join(dict.fromkeys(names)) or None,
        }
        self.rows.append(row)
        self.table.add(turn.kind, row)
        return list(answer["output_ids"])

    def kill(self, turn: DemoTurn, prompt_ids: list[int]) -> None:
        """Lets a worker kill itself after the first insert of a request; waits for the store.

        Raises ``WorkerError`` if the worker stays alive, or if the store does not notice.
        """
        worker = self.workers[turn.worker]
        answer = worker.ask(
            op="generate", prompt_ids=prompt_ids, max_tokens=OUTPUT_TOKENS, die_after_insert=True
        )
        self._note_published(turn.worker, answer)
        self.computed.add(prompt_ids[: len(answer["published_pages"]) * PAGE_TOKENS])
        status = worker.wait_ended(NOTICE_SECONDS)
        if status != -signal.SIGKILL:
            raise WorkerError(f"worker {turn.worker} was to be killed and ended with {status}")
        deadline = time.monotonic() + NOTICE_SECONDS
        while any(lease.display_name == turn.worker for lease in self.admin.leases()):
            if time.monotonic() > deadline:
                raise WorkerError(f"the store still has the lease of {turn.worker}")

    def _note_published(self, name: str, answer: dict[str, Any]) -> None:
        for page in answer["published_pages"]:
            self.published[tuple(page)] = name

    def stats(self) -> dict[str, Any]:
        """Reads the store's stats once the living workers' releases have reached it."""
        for worker in self.workers.values():
            try:
                worker.ask(op="flush")
            except ProcessEndedError:
                continue
        return plain(self.admin.stats())


def run_demo(
    model: str,
    console: Console,
    *,
    leak: bool,
    threads: int | None = None,
    device: str = CPU,
) -> dict[str, Any]:
    """Runs the demo and returns its report; with ``leak`` worker A keeps one pin on purpose.

    Each process computes with ``threads``, by default one for a tiny model and else one for each
    core. The store's pages are on ``device``, and all processes compute there. Raises
    ``WorkerError`` if a process fails, the errors of loading the model, and ``ValueError`` for a
    missing device.
    """
    device = str(find_device(device))
    placed = () if device == CPU else ("--device", device)
    folder = model_folder(model)
    threads = threads_for(model, threads)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvstore-demo-")))
        log: IO[bytes] = stack.enter_context((logs / "processes.log").open("wb"))
        console.print(
            "Starting a store, two workers and stock transformers. Each answers another prompt "
            "first: the first one of a process takes longer, whatever is cached."
        )
        # In one extent: a store that grows meanwhile would be another demo.
        sizes = ("--tier1-bytes", TIER_1_BYTES, "--extent-bytes", TIER_1_BYTES)
        store = stack.enter_context(running_store(*placed, *sizes))
        workers = {
            name: stack.enter_context(
                worker_process(
                    name,
                    str(folder),
                    store.runtime_dir,
                    log=log,
                    longest=LONGEST,
                    threads=threads,
                    device=device,
                )
            )
            for name in WORKERS
        }
        reference = stack.enter_context(
            reference_process(folder, log=log, threads=threads, device=device)
        )
        script = DemoScript(load_tokenizer(folder))
        try:
            for process in (*workers.values(), reference):
                process.wait_ready()
        except ProcessEndedError as error:
            tail = (logs / "processes.log").read_text(errors="replace")[-4_000:]
            raise WorkerError(f"{error}:\n{tail}") from None
        admin = stack.enter_context(kvstore_client.connect_admin(store.runtime_dir))
        with DemoTable(console) as table:
            demo = Demo(workers, reference, admin, table)
            report = _play(demo, script, leak=leak)
    for line in summary(report):
        console.print(line)
    return report


def _play(demo: Demo, script: DemoScript, *, leak: bool) -> dict[str, Any]:
    demo.warm_up(script.warm_up())
    for turn in script.questions():
        demo.ask(turn, script.document + turn.ids)
    again = script.again()
    demo.ask(again, script.document + again.ids)
    history = list(script.document)
    for turn in script.chat():
        history += turn.ids
        history += demo.ask(turn, history)
    stats_running = demo.stats()
    # The reversed document shares no page with the other prompts.
    last = script.last_words()
    prompt_ids = script.document[::-1] + last.ids
    demo.kill(last, prompt_ids)
    demo.ask(DemoTurn(WORKERS[0], "takeover", last.text, last.ids), prompt_ids)
    if leak:
        demo.workers[WORKERS[0]].ask(op="keep_pin", prompt_ids=script.document)
    stats_after_kill = demo.stats()
    kept = ("reserved_slot_count", "quarantined_slot_count")
    return {
        "requests": demo.rows,
        "stats_running": stats_running,
        "stats_after_kill": stats_after_kill,
        "slots_leaked": sum(arena[key] for arena in stats_after_kill["arenas"] for key in kept),
        "pins_leaked": stats_after_kill["pin_count"],
        "near_tie_tokens": sum(row["near_tie_tokens"] for row in demo.rows),
        "output_tokens": sum(len(row["output_ids"]) for row in demo.rows),
    }


def verdict(report: dict[str, Any], *, leak: bool) -> list[str]:
    """Returns the faults of a report in sentences; empty if the demo succeeded.

    Times are not judged, because they depend on the machine.
    """
    wrong = [
        f"{row['kind']} on {row['worker']}: other tokens than stock transformers'"
        for row in report["requests"]
        if not row["identical"]
    ]
    for row in report["requests"]:
        where = f"{row['kind']} on {row['worker']}"
        reused = row["matched_tokens"] + row["copied_tokens"]
        if reused != row["shared_tokens"]:
            wrong.append(f"{where}: {reused} tokens reused of {row['shared_tokens']} shared")
        if row["kind"] == AGAIN and row["prefilled_tokens"]:
            wrong.append(f"{where}: {row['prefilled_tokens']} tokens prefilled a second time")
    if report["near_tie_tokens"] > ACCEPTED_SHARE * report["output_tokens"]:
        wrong.append(f"{report['near_tie_tokens']} near ties are too many")
    for name in WORKERS:
        others = set(WORKERS) - {name}
        shared = [
            row
            for row in report["requests"]
            if row["worker"] == name and others & set((row["published_by"] or "").split("+"))
        ]
        if not shared:
            wrong.append(f"worker {name} matched no page of another worker")
    if report["slots_leaked"]:
        wrong.append(f"{report['slots_leaked']} slots leaked")
    if report["pins_leaked"] != int(leak):
        wrong.append(f"{report['pins_leaked']} pins leaked, where {int(leak)} was kept on purpose")
    return wrong
