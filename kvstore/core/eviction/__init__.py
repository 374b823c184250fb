"""Eviction policies nominate; the cache executes.

A policy never touches the tree or a slot. The cache offers it every leaf that
may become evictable, and carries out the victims it names, in the order named.
"""

from kvstore.core.eviction.lru import LeastRecentlyUsed
from kvstore.core.eviction.order import SWEEP_FROM
from kvstore.core.eviction.policy import EvictionPolicy, PolicyFactory, Victim

__all__ = ["SWEEP_FROM", "EvictionPolicy", "LeastRecentlyUsed", "PolicyFactory", "Victim"]
