"""``kvstore-worker warm``: computes prompts in advance, and pins them in the store."""

import json
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Final

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
from kvstore_ctl.typed_values import STDIN, span_of

# The lifetime of a temporary pin for two calls: it expires if this process dies between them.
BESIDE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """The result of one prompt; ``failure`` says why it is not pinned completely, or is None.

    ``computed_tokens`` are positions that the model ran. Only full pages are pinned.
    """

    line: int
    name: str
    tokens: int
    computed_tokens: int
    pinned_tokens: int
    seconds: float
    failure: str | None


class Warmer:
    """Warms one store with one worker."""

    def __init__(
        self, worker: LocalWorker, admin: Admin, namespace_id: bytes, page_tokens: int
    ) -> None:
        """Takes a worker whose namespace is open, and an admin that may pin there."""
        self._worker = worker
        self._admin = admin
        self._namespace_id = namespace_id
        self._page_tokens = page_tokens

    def warm(self, prompt: WarmPrompt, *, ttl: float | None = None) -> Warmed:
        """Computes the uncached tokens of a prompt and pins its full pages, for ``ttl`` seconds.

        If everything is cached, nothing is computed and the pin is renewed.
        """
        begin = time.perf_counter()
        computed = pinned = 0
        whole = len(prompt.ids) // self._page_tokens * self._page_tokens
        failure = None if whole else f"shorter than a page of {self._page_tokens} tokens"
        if whole:
            try:
                computed = self._compute(prompt.ids, whole)
                pinned = self._pin(prompt, ttl)
            except (RequestTooLongError, StoreError, ValueError) as error:
                failure = str(error)
        return Warmed(
            line=prompt.line,
            name=prompt.name,
            tokens=len(prompt.ids),
            computed_tokens=computed,
            pinned_tokens=pinned,
            seconds=time.perf_counter() - begin,
            failure=failure,
        )

    def _compute(self, ids: list[int], whole: int) -> int:
        """Caches all full pages of a prompt; returns the positions that were computed."""
        namespace = self._worker.namespace
        assert namespace is not None  # it is open
        # A match leaves the last token to compute, and so does ``peek``.
        if namespace.peek(ids) >= min(whole, len(ids) - 1):
            return 0
        return self._worker.engine.generate(ids, 1).computed_tokens

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
    prefix_cache_backend: Backend = None,
    page_tokens: PageTokens = PAGE_TOKENS,
    longest: Longest = None,
    threads: Threads = None,
    device: Device = CPU,
    dtype: Dtype = None,
    deterministic: Deterministic = False,
    as_json: Json = False,
) -> None:
    """Computes prompts and pins them in the store, so that their first request finds them cached.

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
        warmer = Warmer(worker, worker.client.admin, worker.namespace.namespace_id, page_tokens)
        found = [warmer.warm(each, ttl=seconds) for each in prompts]
    _show(found, as_json=as_json)
    raise typer.Exit(1 if any(each.failure for each in found) else 0)


def _show(found: Iterable[Warmed], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"prompts": [asdict(each) for each in found]}) + "\n")
        return
    table = Table(box=SIMPLE_HEAD)
    for name in ("pin", "tokens", "computed", "pinned", "seconds", ""):
        table.add_column(name, justify="left" if name in {"pin", ""} else "right")
    for each in found:
        numbers = (each.tokens, each.computed_tokens, each.pinned_tokens)
        table.add_row(each.name, *map(str, numbers), f"{each.seconds:.2f}", each.failure or "")
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    console.print(table)
