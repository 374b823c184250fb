"""News about the pages that a store has, for an engine's own KV events."""

from typing import Protocol

from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.tracked_requests import EngineRequest


class StoreNews(Protocol):
    """Hears which whole pages of requests the store has. The scheduler's thread uses it."""

    def has(self, request: EngineRequest, key: RequestKey, page_count: int) -> None:
        """Notes that the store has the first ``page_count`` pages of a request, or more."""

    def lacks(self, request: EngineRequest, key: RequestKey, page_count: int) -> None:
        """Notes that the store lacks the page after the first ``page_count``."""


class NoNews:
    """Ignores all news: the engine publishes no events."""

    def has(self, request: EngineRequest, key: RequestKey, page_count: int) -> None:
        """Does nothing."""

    def lacks(self, request: EngineRequest, key: RequestKey, page_count: int) -> None:
        """Does nothing."""
