"""Changes of a rank's weights while it runs, which make all earlier pages wrong for it.

vLLM tells no connector of them. An operator who updates weights empties vLLM's own prefix cache,
and its connector's only if he asks for that too.
"""

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, Final
from weakref import WeakSet

# Methods of vLLM's worker that write weights: from a file, and from a trainer.
WORKER_METHODS: Final = ("reload_weights", "update_weights", "finish_weight_update")
# The method of a model that trainers in the same process call themselves.
MODEL_METHOD: Final = "load_weights"
MARK: Final = "_kvstore_counts_changes"


class WeightChanges:
    """The number of changes since this was made. A rank's thread uses it.

    A change that writes parameters without vLLM's methods goes unseen.
    """

    def __init__(self) -> None:
        self.count = 0
        self._parallel_config: Any = None
        self._layers: frozenset[int] = frozenset()

    def watch(self, vllm_config: Any) -> None:  # noqa: ANN401  # a VllmConfig
        """Begins to count. vLLM must be installed, and the model loaded."""
        self._parallel_config = vllm_config.parallel_config
        layers = vllm_config.compilation_config.static_forward_context.values()
        self._layers = frozenset(map(id, layers))
        worker: Any = import_module("vllm.v1.worker.gpu_worker").Worker
        for name in WORKER_METHODS:
            _count_calls(worker, name, lambda found: found.parallel_config)
        find: Any = import_module("vllm.model_executor.model_loader").get_model_architecture
        speculative = vllm_config.speculative_config
        draft = speculative and speculative.draft_model_config
        for model_config in filter(None, (vllm_config.model_config, draft)):
            _count_calls(find(model_config)[0], MODEL_METHOD, lambda found: found)
        _WATCHING.add(self)

    def seen(self, written: Any) -> None:  # noqa: ANN401  # a ParallelConfig, or a model
        """Counts a change of this rank's weights, and none of another engine's in the process."""
        if written is self._parallel_config:
            self.count += 1
        elif callable(getattr(written, "modules", None)):
            self.count += any(id(module) in self._layers for module in written.modules())


_WATCHING: Final = WeakSet[WeightChanges]()


def _count_calls(owner: Any, name: str, written: Callable[[Any], Any]) -> None:  # noqa: ANN401  # a class
    """Tells all counters of each call of a method; it does so once for a class."""
    method = getattr(owner, name)
    if hasattr(method, MARK):
        return

    @wraps(method)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # as vLLM's own
        for each in tuple(_WATCHING):
            each.seen(written(self))
        return method(self, *args, **kwargs)

    setattr(counted, MARK, True)
    setattr(owner, name, counted)
