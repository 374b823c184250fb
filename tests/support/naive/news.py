"""News of a store's pages, noted as they come."""

from dataclasses import dataclass, field

from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.tracked_requests import EngineRequest


@dataclass
class NotedNews:
    """Reports of pages that the store has, and of those that it lacks: a request, and a number."""

    had: list[tuple[str, int]] = field(default_factory=list)
    lacked: list[tuple[str, int]] = field(default_factory=list)

    def has(self, request: EngineRequest, key: RequestKey, page_count: int) -> None:
        """Notes pages from the beginning."""
        del key
        self.had.append((request.request_id, page_count))

    def lacks(self, request: EngineRequest, key: RequestKey, page_count: int) -> None:
        """Notes how many pages precede the missing one."""
        del key
        self.lacked.append((request.request_id, page_count))
