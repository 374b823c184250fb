"""The parts that reads and writes of pages share."""

from collections.abc import Callable
from typing import Any, NamedTuple

from kvstore.remote.history.remote_namespaces import RemoteNamespaces
from kvstore.remote.history.shard_revisions import ShardRevisions
from kvstore.remote.liveness.engine_calls import EngineCalls
from kvstore.remote.secret.sealing import PageSealer
from kvstore.remote.transfers.counters import RemoteCounters
from kvstore.remote.transfers.page_names import PageNames
from kvstore.service.clock import Clock


class TransferContext(NamedTuple):
    """The parts that reads and writes of pages share.

    ``answer`` calls a callback of the page store's callers with its argument.
    """

    calls: EngineCalls
    gate: ShardRevisions
    names: PageNames
    namespaces: RemoteNamespaces
    sealer: PageSealer
    counters: RemoteCounters
    clock: Clock
    answer: Callable[[Callable[[Any], None], Any], None]
