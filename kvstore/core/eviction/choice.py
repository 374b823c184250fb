"""The policies by name."""

from kvstore.core.eviction.auto import Auto
from kvstore.core.eviction.gdsf import GreedyDual
from kvstore.core.eviction.level import DeepestLevel
from kvstore.core.eviction.lfu import LeastFrequentlyUsed
from kvstore.core.eviction.lru import LeastRecentlyUsed
from kvstore.core.eviction.policy import PolicyFactory
from kvstore.core.eviction.slru import Segmented

POLICIES: dict[str, PolicyFactory] = {
    "auto": Auto,
    "gdsf": GreedyDual,
    "level": DeepestLevel,
    "lfu": LeastFrequentlyUsed,
    "lru": LeastRecentlyUsed,
    "slru": Segmented,
}
