"""``kvstore-worker warm``: computes prompts in advance, and pins them in the store."""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Final, NamedTuple

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from inference_worker.chat.format import chat_format
from inference_worker.chat.prompt_file import WarmPrompt, read_prompts
from inference_worker.commands.options import (
    Backend,
    Deterministic,
    Device,
    Dtype,
    Json,
    Longest,
    Model,
    PageTokens,
    StoreDir,
    Threads,
    end_on_sigterm,
    told_failures,
)
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.engine.local_worker import ATTACH_SECONDS, LocalWorker, local_worker
from inference_worker.errors import RequestTooLongError
from inference_worker.http.api_keys import salt_of
from inference_worker.model.device import threads_for, use_threads
from inference_worker.model.names import CPU, GEMMA
from kvstore_client import Admin
from kvstore_client.errors import IdReused, PrefixNotCached, StoreError
from kvstore_client.namespace import PREFETCH
from kvstore_ctl.typed_values import STDIN, span_of

# The lifetime of a temporary pin for two calls: it expires if this process dies between them.
BESIDE_SECONDS: Final = 60.0
# Longest waits for a prompt's pages from tier 3, and for all pinned pages to be in the remote tier.
FETCH_SECONDS: Final = 60.0
SHARE_SECONDS: Final = 10.0
# Between two questions for what the remote tier has. The store asks it about each second.
SHARED_PAUSE: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """The result of one prompt; ``failure`` says why it is not pinned completely, or is None.

    ``computed_tokens`` are positions that the model ran. ``remote_tokens`` came from the store that
    hosts share, and ``disk_tokens`` from the disk of this host's store. Only full pages are pinned.
    The store that hosts share has the first ``shared_tokens``, as far as this host knows.
    """

    line: int
    name: str
    tokens: int
    computed_tokens: int
    remote_tokens: int = 0
    disk_tokens: int = 0
    pinned_tokens: int
    shared_tokens: int = 0
    seconds: float
    failure: str | None


class _Cached(NamedTuple):
    """Tokens of a prompt that were computed, or loaded from tier 3."""

    computed: int = 0
    remote: int = 0
    disk: int = 0


class Warmer:
    """Warms one store with one worker."""

    def __init__(
        self,
        worker: LocalWorker,
        admin: Admin,
        namespace_id: bytes,
        page_tokens: int,
        *,
        fetch_seconds: float = FETCH_SECONDS,
    ) -> None:
        """Takes a worker whose namespace is open, and an admin that may pin there.

        Tier 3 gets ``fetch_seconds`` to deliver a prompt's pages.
        """
        self._worker = worker
        self._admin = admin
        self._namespace_id = namespace_id
        self._page_tokens = page_tokens
        self._fetch_seconds = fetch_seconds
        self._has_tier_3 = PREFETCH in admin.capabilities().features
        self._has_remote_tier = admin.stats().HasField("remote")

    def warm(self, prompt: WarmPrompt, *, ttl: float | None = None) -> Warmed:
        """Caches a prompt and pins its full pages, for ``ttl`` seconds.

        Loads what tier 3 has, and computes the rest. If everything is cached, nothing is loaded or
        computed and the pin is renewed.
        """
        begin = time.perf_counter()
        cached, pinned = _Cached(), 0
        whole = len(prompt.ids) // self._page_tokens * self._page_tokens
        failure = None if whole else f"shorter than a page of {self._page_tokens} tokens"
        if whole:
            try:
                cached = self._fetch(prompt.ids[:whole])
                cached = self._compute(prompt.ids, whole, cached)
                pinned = self._pin(prompt, ttl)
            except (RequestTooLongError, StoreError, ValueError) as error:
                failure = str(error)
        return Warmed(
            line=prompt.line,
            name=prompt.name,
            tokens=len(prompt.ids),
            computed_tokens=cached.computed,
            remote_tokens=cached.remote,
            disk_tokens=cached.disk,
            pinned_tokens=pinned,
            seconds=time.perf_counter() - begin,
            failure=failure,
        )

    def wait_shared(self, found: Sequence[Warmed], seconds: float) -> list[Warmed]:
        """Waits until the remote tier has the pinned pages of all prompts, ``seconds`` at most.

        Returns the results with what it has of each.
        """
        until = time.monotonic() + seconds
        while self._has_remote_tier:
            pins = self._admin.named_pins(self._namespace_id)
            shared = {each.name: each.remote_token_count for each in pins}
            found = [replace(each, shared_tokens=shared.get(each.name, 0)) for each in found]
            are_shared = all(each.shared_tokens >= each.pinned_tokens for each in found)
            if are_shared or time.monotonic() >= until:
                break
            time.sleep(SHARED_PAUSE)
        return list(found)

    def _fetch(self, ids: list[int]) -> _Cached:
        """Loads what tier 3 has of a prompt's full pages. A failure leaves them to be computed."""
        if not (self._has_tier_3 and self._fetch_seconds):
            return _Cached()
        try:
            fetched = self._admin.fetch_prefix(
                self._namespace_id, ids, seconds=self._fetch_seconds, may_evict=True
            )
        except StoreError:
            return _Cached()
        return _Cached(remote=fetched.remote_token_count, disk=fetched.disk_token_count)

    def _compute(self, ids: list[int], whole: int, cached: _Cached) -> _Cached:
        """Caches the full pages of a prompt that are not in memory."""
        namespace = self._worker.namespace
        assert namespace is not None  # it is open
        # A match leaves the last token to compute, and so does ``peek``.
        if namespace.peek(ids) >= min(whole, len(ids) - 1):
            return cached
        made = self._worker.engine.generate(ids, 1)
        return _Cached(
            made.computed_tokens,
            cached.remote + made.remote_tokens,
            cached.disk + made.disk_tokens,
        )

    def _pin(self, prompt: WarmPrompt, ttl: float | None) -> int:
        """Pins or renews; replaces a pin of this name that holds other or fewer pages.

        The old pin goes only once a temporary pin holds the whole prompt, so a failure changes
        nothing.
        """
        try:
            return self._ask(prompt.name, prompt, ttl)
        except (IdReused, PrefixNotCached):
            beside = f"warm-{token_hex(8)}"
            self._ask(beside, prompt, BESIDE_SECONDS)
            try:
                self._admin.unpin_prefix(self._namespace_id, prompt.name)
                return self._ask(prompt.name, prompt, ttl)
            finally:
                self._admin.unpin_prefix(self._namespace_id, beside)

    def _ask(self, name: str, prompt: WarmPrompt, ttl: float | None) -> int:
        answer = self._admin.pin_prefix(
            self._namespace_id, name, prompt.ids, ttl=ttl, require_all=True
        )
        return int(answer.pinned_token_count)


PIN_PREFIX = "warm/"
# Where no terminal says how wide it is.
TABLE_WIDTH = 120


def warm(  # noqa: PLR0913 - each is an option
    file: Annotated[str, typer.Argument(help="JSON lines, or - for standard input.")],
    *,
    model: Model = GEMMA,
    runtime_dir: StoreDir = None,
    ttl: Annotated[
        str | None,
        typer.Option(help="How long pins live, such as 90s, 10m or 7d; default: until unpinned."),
    ] = None,
    pin_prefix: Annotated[str, typer.Option(help="Prefix of each pin's name.")] = PIN_PREFIX,
    cache_salt: Annotated[
        str,
        typer.Option(help="Salt of the requests that have to match. Default: none."),
    ] = "",
    user: Annotated[
        str | None,
        typer.Option(help="User of the requests, by the name of an API key."),
    ] = None,
    fetch_timeout: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds to wait for a prompt's pages from tier 3; 0: not at all."
        ),
    ] = FETCH_SECONDS,
    share_timeout: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait until the remote tier has all pinned pages."),
    ] = SHARE_SECONDS,
    prefix_cache_backend: Backend = None,
    page_tokens: PageTokens = PAGE_TOKENS,
    longest: Longest = None,
    threads: Threads = None,
    device: Device = CPU,
    dtype: Dtype = None,
    deterministic: Deterministic = False,
    as_json: Json = False,
) -> None:
    """Caches prompts and pins them in the store, so that their first request finds them cached.

    It loads what tier 3 has of a prompt, and computes the rest. While a pin lives, other hosts of
    the same remote tier find its pages there, and the same command on them computes nothing.

    Each line of FILE is {"prompt": text}, {"messages": [...]} or {"prompt_ids": [...]}, and may
    have a "name" for its pin. Messages are rendered as by the HTTP server. If the last message is
    not a user's, they are rendered up to the beginning of the user's text. Repeated, the command
    computes missing pages and renews the pins. Exits 1 if a prompt cannot be pinned, and says why.
    """
    end_on_sigterm()
    notes = Console(stderr=True)
    with told_failures(notes), ExitStack() as stack:
        seconds = None if ttl is None else span_of(ttl)
        text = sys.stdin.read() if file == STDIN else Path(file).read_text(encoding="utf-8")
        use_threads(threads_for(model, threads))
        worker = stack.enter_context(
            local_worker(
                model,
                backend=prefix_cache_backend,
                runtime_dir=runtime_dir,
                name="warm",
                page_tokens=page_tokens,
                longest=longest,
                attach_seconds=ATTACH_SECONDS,
                device=device,
                dtype=dtype,
                deterministic=deterministic,
                cache_salt=salt_of(user, cache_salt),
            )
        )
        if worker.client is None or worker.namespace is None or worker.without_store is not None:
            raise ValueError(f"nothing can be pinned: {worker.without_store}")
        tokenizer = worker.model.tokenizer
        written = chat_format(tokenizer, worker.model.end_ids)
        prompts = read_prompts(text.splitlines(), tokenizer, written.message_ids, pin_prefix)
        warmer = Warmer(
            worker,
            worker.client.admin,
            worker.namespace.namespace_id,
            page_tokens,
            fetch_seconds=fetch_timeout,
        )
        found = [warmer.warm(each, ttl=seconds) for each in prompts]
        found = warmer.wait_shared(found, share_timeout)
    _show(found, as_json=as_json)
    raise typer.Exit(1 if any(each.failure for each in found) else 0)


def _show(found: Iterable[Warmed], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"prompts": [asdict(each) for each in found]}) + "\n")
        return
    table = Table(box=SIMPLE_HEAD)
    for name in ("pin", "tokens", "computed", "remote", "disk", "pinned", "shared", "seconds", ""):
        table.add_column(name, justify="left" if name in {"pin", ""} else "right")
    for each in found:
        numbers = (
            each.tokens,
            each.computed_tokens,
            each.remote_tokens,
            each.disk_tokens,
            each.pinned_tokens,
            each.shared_tokens,
        )
        table.add_row(each.name, *map(str, numbers), f"{each.seconds:.2f}", each.failure or "")
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    console.print(table)
