"""The client of a kvstore: match, reserve, write in place, insert, release.

Importing it loads neither torch nor numpy.
"""

from kvstore_client import errors
from kvstore_client.admin import Admin, connect_admin, connect_remote_admin
from kvstore_client.calls.deadlines import StoreBudget
from kvstore_client.calls.event_watch import EventWatch, History
from kvstore_client.client import Client
from kvstore_client.config import ClientConfig, ContiguousMemory
from kvstore_client.memory.address_range import AddressRange, RangeExtent
from kvstore_client.namespace import Namespace
from kvstore_client.pages.match import InFlight, Match, Prefetched, Source
from kvstore_client.pages.reservation import (
    Acquired,
    Inserted,
    Reservation,
    ReuseHint,
    grow_reservations,
)
from kvstore_client.pages.spare_slots import SpareSlots
from kvstore_client.remote_store import RemoteStore
from kvstore_client.runtime_dir import default_runtime_dir
from kvstore_client.store_step import StepOutcome, StoreStep
from kvstore_client.values.kv_cache_groups import GroupInsert, GroupPages, GroupWindow
from kvstore_client.values.namespace_key import NamespaceIdentity
from kvstore_client.values.page_layout import OpaqueContent, PagedContent, PageLayout
from kvstore_client.values.page_runs import DatedRun, PageRef, Pages, SlotRun

__all__ = [
    "Acquired",
    "AddressRange",
    "Admin",
    "Client",
    "ClientConfig",
    "ContiguousMemory",
    "DatedRun",
    "EventWatch",
    "GroupInsert",
    "GroupPages",
    "GroupWindow",
    "History",
    "InFlight",
    "Inserted",
    "Match",
    "Namespace",
    "NamespaceIdentity",
    "OpaqueContent",
    "PageLayout",
    "PageRef",
    "PagedContent",
    "Pages",
    "Prefetched",
    "RangeExtent",
    "RemoteStore",
    "Reservation",
    "ReuseHint",
    "SlotRun",
    "Source",
    "SpareSlots",
    "StepOutcome",
    "StoreBudget",
    "StoreStep",
    "connect_admin",
    "connect_remote_admin",
    "default_runtime_dir",
    "errors",
    "grow_reservations",
]
