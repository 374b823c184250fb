"""An engine that calls a connector's scheduler half as vLLM's scheduler does, and its ranks.

A block's KV is the prefix of tokens that it was computed from, or None where it is anything else:
so each copy shows whether it is of the right page, and each page that is published is compared.
"""

from collections import Counter, deque

from kvstore_client import ReuseHint
from kvstore_vllm.engine.connector_settings import PlannerSettings
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.transfer_planner import TransferPlanner
from kvstore_vllm.step_plan import BlockTransfer, StepPlan, WorkerReport
from naive.news import NotedNews
from naive.pages import NaivePages, Prefix
from naive.request import NaiveRequest, Step, next_token
from wire.told_answers import ToldAnswers

NOTHING = 0  # vLLM's block of nothing, which nobody is given
LOOKUP_TIMEOUT = 1.0
SCHEDULING_WAIT = 0.003


class NaiveEngine:
    """Requests, blocks and ranks. ``lag`` steps run before the first one's output is taken in."""

    def __init__(
        self,
        store: NaivePages,
        *,
        blocks: int = 40,
        load_async: bool = True,
        save_output: bool = True,
        ranks: int = 1,
        lag: int = 0,
        chunk: int = 6,
        scheduling_wait: float = SCHEDULING_WAIT,
        saves_beside: bool = False,
    ) -> None:
        self.store, self.page, self.chunk, self.lag = store, store.page_tokens, chunk, lag
        self.answers, self.ranks, self.news = ToldAnswers(), ranks, NotedNews()
        self.saves_beside = saves_beside
        self.now, self.usable, self.joining, self.load_async = 0.0, True, False, load_async
        settings = PlannerSettings(
            page_tokens=self.page,
            rank_count=ranks,
            lookup_timeout=LOOKUP_TIMEOUT,
            scheduling_wait=scheduling_wait,
            load_async=load_async,
            save_output=save_output,
        )
        self.planner = TransferPlanner(
            settings,
            store,
            self.answers,
            usable=lambda: self.usable,
            joining=lambda: self.joining,
            blocks_of=lambda name: self.requests[name].blocks if name in self.requests else (),
            news=self.news,
            clock=lambda: self.now,
        )
        self.spare = list(range(1, blocks + 1))
        self.kv: dict[int, Prefix | None] = dict.fromkeys(self.spare)
        self.requests: dict[str, NaiveRequest] = {}
        self.waiting: list[NaiveRequest] = []
        self.running: list[NaiveRequest] = []
        self.loading: dict[str, tuple[NaiveRequest, BlockTransfer]] = {}
        # Saves beside steps by job: the transfer, and what each rank that ended it has read.
        self.saving: dict[int, tuple[BlockTransfer, list[list[Prefix | None]]]] = {}
        # Blocks of preempted requests, which the next step may overwrite.
        self.stale: list[int] = []
        self.held: dict[str, NaiveRequest] = {}
        self.ended_loads: Counter[str] = Counter()
        self.failing: set[str] = set()
        self.received: set[str] = set()
        self.finished: set[str] = set()
        self.report = WorkerReport()
        self.invalid: set[int] = set()
        self.preempted: set[str] = set()
        self.steps: deque[Step] = deque()
        self.fail_next_loads = self.fail_next_saves = 0
        self.loaded_pages = 0
        self.outputs: dict[str, list[int]] = {}

    # What users and time do.

    def arrive(self, name: str, prompt: list[int], hint: ReuseHint | None = None) -> None:
        """A request comes."""
        request = NaiveRequest(name, list(prompt), len(prompt))
        self.requests[name] = request
        self.waiting.append(request)
        self.planner.arrived(request, RequestKey(), hint)

    def preempt(self, request: NaiveRequest) -> None:
        """Takes a running request's blocks away."""
        self.running.remove(request)
        self.spare += request.blocks
        self.stale += request.blocks
        request.blocks = []
        request.num_computed_tokens = 0
        self.preempted.add(request.request_id)
        self.waiting.insert(0, request)

    def finish(self, request: NaiveRequest) -> None:
        """Ends a request wherever it is: by itself, or because somebody aborts it."""
        name = request.request_id
        computed = request.num_computed_tokens
        blocks = request.blocks[: -(-computed // self.page)]
        loading = name in self.loading
        self.finished.add(name)
        if request in self.running:
            self.running.remove(request)
        if request in self.waiting:
            self.waiting.remove(request)
        keep = self.planner.finished(name, blocks)
        if loading:
            assert not keep, "vLLM frees these blocks when the load ended"
        elif keep:
            self.held[name] = request
        else:
            self._drop(request)

    def end_load(self, name: str, *, ok: bool) -> None:
        """One rank ends a load."""
        _, transfer = self.loading[name]
        if not ok:
            self.failing.add(name)
            self.report.failed.add(transfer.job)
            self.invalid.update(transfer.block_ids)
        for (_, slot), block in zip(transfer.places, transfer.block_ids, strict=True):
            content = self.store.read(slot)
            self.kv[block] = None if name in self.failing else content
        self.report.ended[transfer.job] += 1
        self.ended_loads[name] += 1
        if self.ended_loads[name] == self.ranks:
            self.received.add(name)

    def end_save(self, job: int, *, ok: bool = True) -> None:
        """One rank ends a save beside steps: the blocks are read at this moment at the latest."""
        transfer, reads = self.saving[job]
        reads.append([self.kv[block] if ok else None for block in transfer.block_ids])
        for (_, slot), content in zip(transfer.places, zip(*reads, strict=True), strict=True):
            self.store.write(slot, content[0] if len(set(content)) == 1 else None)
        if not ok:
            self.report.failed.add(job)
        self.report.ended[job] += 1
        if len(reads) == self.ranks:
            del self.saving[job]

    # A step.

    def step(self) -> None:
        """Schedule and run one, and take in the output of one before it."""
        tokens = {each.request_id: n for each in self.running if (n := self._advance(each))}
        for request in list(self.waiting):
            self._admit(request, tokens)
        plan = StepPlan("engine", load_async=self.load_async)
        preempted, self.preempted = self.preempted, set()
        self.planner.plan(plan, tokens, preempted)
        self._execute(plan, tokens)
        if len(self.steps) > self.lag or not tokens:
            self.take_output()

    def take_output(self) -> None:
        """Takes in the oldest step's output, as vLLM does: failed loads, tokens, reports."""
        if not self.steps:
            return
        step = self.steps.popleft()
        skipped = self._recompute(step)
        for name, count in step.tokens.items():
            request = self.requests.get(name)
            if request is None:
                continue
            request.num_in_flight_tokens -= count
            if name in skipped or request not in self.running:
                continue
            if request.num_computed_tokens - request.num_in_flight_tokens == request.num_tokens:
                self._require_right(request)
                request.all_token_ids.append(next_token(tuple(request.all_token_ids)))
        self.planner.reported(step.report, step.invalid)
        for name in step.received:
            self._loaded(name)
        for name in step.let_go:
            self._drop(self.held.pop(name))

    def _advance(self, request: NaiveRequest) -> int:
        """Returns the tokens that a running request computes next; one that lags waits."""
        count = min(self.chunk, request.num_tokens - request.num_computed_tokens)
        return count if count > 0 and self._grow(request, count) else 0

    def _admit(self, request: NaiveRequest, tokens: dict[str, int]) -> None:
        name = request.request_id
        if request.num_in_flight_tokens:
            return
        loaded = 0
        if request.num_computed_tokens == 0:
            answer = self.planner.matched_tokens(name, 0)
            if answer is None:
                return
            assert answer % self.page == 0
            assert answer <= request.num_tokens - (not self.load_async)
            loaded = answer
        beside = loaded and self.load_async
        count = (
            0
            if beside
            else min(self.chunk, request.num_tokens - max(loaded, request.num_computed_tokens))
        )
        request.num_computed_tokens = max(loaded, request.num_computed_tokens)
        if not self._grow(request, count):
            request.num_computed_tokens -= loaded
            return
        self.planner.allocated(name, list(request.blocks), loaded)
        self.waiting.remove(request)
        if beside:
            self.loading[name] = (request, None)  # type: ignore[assignment]  # planned below
        else:
            self.running.append(request)
            tokens[name] = count

    def _prepare(self, plan: StepPlan) -> None:
        """Ends the saves of preempted requests, whose blocks are overwritten from now on."""
        for job, (transfer, _) in list(self.saving.items()):
            while transfer.request_id in plan.preempted and job in self.saving:
                self.end_save(job)
        for block in self.stale:
            self.kv[block] = None
        self.stale.clear()

    def _execute(self, plan: StepPlan, tokens: dict[str, int]) -> None:
        self._prepare(plan)
        report, invalid = self.report, self.invalid
        self.report, self.invalid = WorkerReport(), set()
        for transfer in plan.loads:
            self.loaded_pages += len(transfer.block_ids)
            request = self.requests[transfer.request_id]
            assert set(transfer.block_ids) <= set(request.blocks)
            if self.load_async:
                self.loading[transfer.request_id] = (request, transfer)
                continue
            ok = not self.fail_next_loads
            self.fail_next_loads = max(0, self.fail_next_loads - 1)
            for (_, slot), block in zip(transfer.places, transfer.block_ids, strict=True):
                self.kv[block] = self.store.read(slot) if ok else None
            report.ended[transfer.job] += self.ranks
            if not ok:
                report.failed.add(transfer.job)
                invalid.update(transfer.block_ids)
        for name, count in tokens.items():
            self._compute(self.requests[name], count)
        for transfer in plan.saves:
            request = self.requests[transfer.request_id]
            assert set(transfer.block_ids) <= set(request.blocks), "another's block is read"
            if self.saves_beside:
                self.saving[transfer.job] = (transfer, [])
                continue
            for (_, slot), block in zip(transfer.places, transfer.block_ids, strict=True):
                self.store.write(slot, None if self.fail_next_saves else self.kv[block])
            if self.fail_next_saves:
                self.fail_next_saves -= 1
                report.failed.add(transfer.job)
            report.ended[transfer.job] += self.ranks
        received, self.received = self.received, set()
        self.steps.append(Step(dict(tokens), report, invalid, set(plan.let_go), received))

    def _compute(self, request: NaiveRequest, count: int) -> None:
        begin, end = request.num_computed_tokens, request.num_computed_tokens + count
        ids = tuple(request.all_token_ids)
        for page in range(begin // self.page, -(-end // self.page)):
            before = [self.kv[block] for block in request.blocks[:page]]
            right = all(each == ids[: (i + 1) * self.page] for i, each in enumerate(before))
            begins_right = begin <= page * self.page or self.kv[request.blocks[page]] == ids[:begin]
            within = min(end, (page + 1) * self.page)
            # A whole load leaves the last token to be computed again, in a full block.
            if begins_right or self.kv[request.blocks[page]] == ids[: (page + 1) * self.page]:
                self.kv[request.blocks[page]] = ids[:within] if right else None
            else:
                self.kv[request.blocks[page]] = None
        request.num_computed_tokens = end
        request.num_in_flight_tokens += count

    def _recompute(self, step: Step) -> set[str]:
        """Computes blocks that failed to load; returns the requests whose tokens are void."""
        found = set()
        for request in [*self.running, *(each for each, _ in self.loading.values())]:
            for index, block in enumerate(request.blocks):
                if block in step.invalid:
                    request.num_computed_tokens = index * self.page
                    found.add(request.request_id)
                    break
        if self.lag:
            # Later steps' tokens of these are void too; their computed counts were cut above.
            for later in self.steps:
                for name in found:
                    if count := later.tokens.pop(name, 0):
                        self.requests[name].num_in_flight_tokens -= count
        return found

    def _loaded(self, name: str) -> None:
        del self.ended_loads[name]
        request, _ = self.loading.pop(name)
        if name in self.finished:
            self._drop(request)
            return
        if name in self.failing:
            self.failing.discard(name)
        elif request.num_computed_tokens == request.num_tokens:
            request.num_computed_tokens -= 1
        if not request.num_computed_tokens:
            self._take_back(request.blocks)
            request.blocks = []
        self.waiting.insert(0, request)

    def _require_right(self, request: NaiveRequest) -> None:
        """Raises where a token comes of KV that is not its prefix's."""
        for page in range(request.num_tokens // self.page):
            end = (page + 1) * self.page
            assert self.kv[request.blocks[page]] == tuple(request.all_token_ids[:end])

    def _grow(self, request: NaiveRequest, count: int) -> bool:
        needed = -(-(request.num_computed_tokens + count) // self.page) - len(request.blocks)
        if needed > len(self.spare):
            return False
        for _ in range(needed):
            request.blocks.append(self.spare.pop(0))
        return True

    def _take_back(self, blocks: list[int]) -> None:
        for block in blocks:
            self.kv[block] = None
            self.spare.append(block)

    def _drop(self, request: NaiveRequest) -> None:
        self._take_back(request.blocks)
        request.blocks = []
        self.outputs[request.request_id] = list(request.all_token_ids)
        self.requests.pop(request.request_id, None)
