"""The remote engine on S3 and what speaks its protocol, by the library obstore.

A request needs milliseconds, so a call has many under way at a time. An event loop on a thread of
its own runs them, which ends each at the call's deadline.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from time import monotonic
from typing import Any, Final, Literal, NamedTuple, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from kvstore.remote.buffers import copy_bytes
from kvstore.remote.engine import (
    MOST_CONTROL_BYTES,
    EngineCapabilities,
    EngineNodes,
    ReadResult,
    require_lives,
)
from kvstore.remote.errors import (
    DeadlinePassed,
    EngineClosed,
    Reaction,
    RemoteError,
    ReplyMalformed,
)
from kvstore.remote.finding import EngineFinding, FindingKind
from kvstore.remote.objects.object_errors import path_of, remote_error

T = TypeVar("T")
CAPABILITIES: Final = EngineCapabilities(
    exists_in_one_trip=False,
    expires=False,
    revisions=True,
    lists=True,
    # A PUT takes no more: https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html.
    most_bytes=5 << 30,
    best_bytes=4 << 20,
    registered_memory=False,
    keeps_deadlines=True,
)
# More at a time than these brought nothing where they were measured: docs/remote-engines.md.
LOOKS_AT_A_TIME: Final = 16
READS_AT_A_TIME: Final = 8
WRITES_AT_A_TIME: Final = 2
CLOSE_SECONDS: Final = 1.0
_CLOCK: Final = "kvr/clock"
NOTHING_EXPIRES: Final = EngineFinding(
    FindingKind.UNKNOWN,
    "lifecycle",
    "unknown",
    "A bucket without a lifecycle rule grows without bound. A rule that covers kvr/ flushes all.",
    "Give the bucket a rule that expires the prefix kv1/ after --remote-ttl, and nothing else.",
)


class Bucket(NamedTuple):
    """A bucket, the beginning of all names in it, and the server if that is not AWS.

    Without keys, the ones of the environment or of the machine's role are used.
    """

    name: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None


def store_of(bucket: Bucket) -> S3Store:
    """Returns obstore's client, which neither retries nor signs the content.

    A retry would be one of the caller's deadline. TLS or the seals of pages protect the content,
    and its digest costs half of the client's processor time.
    """
    given = {
        "endpoint": bucket.endpoint,
        "region": bucket.region,
        "access_key_id": bucket.access_key,
        "secret_access_key": bucket.secret_key,
    }
    return S3Store(
        bucket.name,
        prefix=bucket.prefix or None,
        config={key: value for key, value in given.items() if value is not None},  # type: ignore[arg-type]  # its keys
        unsigned_payload=True,
        client_options={
            "allow_http": (bucket.endpoint or "").startswith("http:"),
            # Each call has its own deadline.
            "timeout": timedelta(hours=1),
            "pool_idle_timeout": timedelta(seconds=15),
        },
        retry_config={"max_retries": 0, "retry_timeout": timedelta(0)},
    )


class S3Engine:
    """A :class:`~kvstore.remote.engine.RemoteEngine` on a bucket. Thread-safe.

    Lives have no effect: a lifecycle rule of the bucket expires pages.
    """

    capabilities = CAPABILITIES

    def __init__(self, bucket: Bucket) -> None:
        self._store = store_of(bucket)
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="kv-remote-s3", daemon=True)
        self._thread.start()

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Asks for many names at a time."""
        works = [lambda name=name: self._exists(name) for name in names]
        return list(self._in_order(works, LOOKS_AT_A_TIME, deadline))

    def get_many(
        self, names: Sequence[bytes], into: Sequence[memoryview], deadline: float
    ) -> Iterator[ReadResult]:
        """Has some reads ahead. Compares a length before it receives the content."""
        works = [
            lambda name=name, size=buffer.nbytes: self._content(name, size, size)
            for name, buffer in zip(names, into, strict=True)
        ]
        for buffer, found in zip(
            into, self._in_order(works, READS_AT_A_TIME, deadline), strict=True
        ):
            if isinstance(found, memoryview):
                copy_bytes(buffer, found)
                yield ReadResult.READ
            else:
                yield found

    def put_many(
        self,
        names: Sequence[bytes],
        values: Sequence[memoryview],
        lives_ms: Sequence[int],
        deadline: float,
    ) -> Iterator[RemoteError | None]:
        """Has some writes ahead, each from a copy: a request that is late ends by itself."""
        require_lives(lives_ms)
        works = [
            lambda name=name, value=value: self._written(name, bytes(value))
            for name, value in zip(names, values, strict=True)
        ]
        yield from self._in_order(works, WRITES_AT_A_TIME, deadline)

    def refresh_many(
        self, names: Sequence[bytes], lives_ms: Sequence[int], deadline: float
    ) -> None:
        """Does nothing, since the bucket expires by age alone."""
        del names, lives_ms
        self._require_open(deadline)

    def control(self, name: bytes, deadline: float) -> bytes | None:
        """Reads a short object."""
        found = self._result(self._content(name, 0, MOST_CONTROL_BYTES), deadline)
        if found is ReadResult.WRONG_SIZE:
            raise ReplyMalformed("a control value is too long")
        return bytes(found) if isinstance(found, memoryview) else None

    def set_control(
        self, name: bytes, value: bytes, life_ms: int, deadline: float, *, only_if_absent: bool
    ) -> bool:
        """Creates an object by a conditional PUT, or replaces it."""
        del life_ms
        return self._result(self._put(name, value, is_new=only_if_absent), deadline)

    def delete_many(self, names: Sequence[bytes], deadline: float) -> None:
        """Deletes many objects at a time."""
        works = [lambda name=name: self._deleted(name) for name in names]
        for _ in self._in_order(works, LOOKS_AT_A_TIME, deadline):
            pass

    def time_ms(self, deadline: float) -> int:
        """Returns the time, in whole seconds, that the server gives an object written now."""
        return self._result(self._time_ms(), deadline)

    def nodes(self) -> EngineNodes:
        """Has one node."""
        return EngineNodes()

    def ping(self, deadline: float) -> None:
        """Asks for an object that need not exist."""
        self._result(self._exists(_CLOCK.encode()), deadline)

    def findings(self, deadline: float) -> list[EngineFinding]:
        """Cannot read the bucket's rules, and says which ones it needs."""
        self.ping(deadline)
        return [NOTHING_EXPIRES]

    def close(self) -> None:
        """Ends the calls under way."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    async def _exists(self, name: bytes) -> bool:
        try:
            await obstore.head_async(self._store, path_of(name))
        except FileNotFoundError:
            return False
        return True

    async def _content(self, name: bytes, least: int, most: int) -> memoryview | ReadResult:
        """Returns an object's content if its length is within bounds."""
        try:
            found = await obstore.get_async(self._store, path_of(name))
        except FileNotFoundError:
            return ReadResult.MISSING
        if not least <= found.meta["size"] <= most:
            return ReadResult.WRONG_SIZE
        content = memoryview(await found.bytes_async()).cast("B")
        return content if least <= content.nbytes <= most else ReadResult.WRONG_SIZE

    async def _put(self, name: bytes, value: bytes, *, is_new: bool) -> bool:
        mode: Literal["create", "overwrite"] = "create" if is_new else "overwrite"
        try:
            await obstore.put_async(
                self._store, path_of(name), value, use_multipart=False, mode=mode
            )
        except AlreadyExistsError:
            return False
        return True

    async def _written(self, name: bytes, value: bytes) -> RemoteError | None:
        try:
            await self._put(name, value, is_new=False)
        except BaseError as error:
            refused = remote_error(error)
            if refused.reaction is not Reaction.VALUE:
                raise
            return refused
        return None

    async def _deleted(self, name: bytes) -> None:
        try:
            await obstore.delete_async(self._store, path_of(name))
        except FileNotFoundError:
            return

    async def _time_ms(self) -> int:
        await self._put(_CLOCK.encode(), b"", is_new=False)
        written = (await obstore.head_async(self._store, _CLOCK))["last_modified"]
        return int(written.timestamp() * 1000)

    def _in_order(
        self, works: Sequence[Callable[[], Coroutine[Any, Any, T]]], ahead: int, deadline: float
    ) -> Iterator[T]:
        """Yields the results of calls, in order, with a bounded number under way."""
        self._require_open(deadline)
        waiting: deque[Future[T]] = deque()
        unsent = iter(works)
        try:
            for _ in works:
                while len(waiting) < ahead and (work := next(unsent, None)) is not None:
                    waiting.append(self._submitted(work(), deadline))
                yield _received(waiting.popleft(), deadline)
        finally:
            for each in waiting:
                each.cancel()

    def _result(self, work: Coroutine[Any, Any, T], deadline: float) -> T:
        try:
            self._require_open(deadline)
        except RemoteError:
            work.close()
            raise
        return _received(self._submitted(work, deadline), deadline)

    def _submitted(self, work: Coroutine[Any, Any, T], deadline: float) -> Future[T]:
        bounded = _bounded(work, deadline)
        try:
            return asyncio.run_coroutine_threadsafe(bounded, self._loop)
        except RuntimeError as error:
            bounded.close()
            work.close()
            raise EngineClosed("the engine was closed") from error

    def _require_open(self, deadline: float) -> None:
        if self._is_closed:
            raise EngineClosed("the engine was closed")
        if monotonic() >= deadline:
            raise DeadlinePassed("the deadline passed before the call")


def _received(future: Future[T], deadline: float) -> T:
    try:
        # The loop ends each request in time, unless it was closed before it saw the request.
        return future.result(max(deadline - monotonic(), 0) + CLOSE_SECONDS)
    except (CancelledError, TimeoutError):
        raise EngineClosed("the engine was closed") from None


async def _bounded(work: Awaitable[T], deadline: float) -> T:
    """Ends a request at a deadline of ``time.monotonic``, which is the clock of the loop."""
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError:
        raise DeadlinePassed("the server did not answer in time") from None
    except (BaseError, OSError) as error:
        raise remote_error(error) from error


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
