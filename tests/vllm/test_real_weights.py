"""Changes of weights are seen through vLLM's own worker and a model's class."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import ModelConfig
from vllm.v1.worker import gpu_worker
from vllm.v1.worker.cpu_worker import CPUWorker

from kvstore_vllm.rank import weight_changes
from kvstore_vllm.rank.weight_changes import WORKER_METHODS, WeightChanges


class Model(torch.nn.Module):
    """A model of one layer, with vLLM's method to load weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Identity()
        self.loaded = 0

    def load_weights(self, weights: object) -> None:
        """Counts its calls."""
        del weights
        self.loaded += 1


def config(model: Model) -> Any:  # noqa: ANN401  # as much of a VllmConfig as is read
    """The configuration of an engine of that model."""
    return SimpleNamespace(
        parallel_config=object(),
        compilation_config=SimpleNamespace(static_forward_context={"layer": model.layer}),
        speculative_config=None,
        model_config=object(),
    )


@pytest.fixture
def two_engines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Model, WeightChanges]]:
    """Two engines of one process."""

    def find(model_config: ModelConfig) -> tuple[type, str]:
        del model_config
        return Model, "Model"

    for name in WORKER_METHODS:
        # Nothing is written, but who wrote is seen.
        monkeypatch.setattr(gpu_worker.Worker, name, lambda _: None)
    monkeypatch.setattr("vllm.model_executor.model_loader.get_model_architecture", find)
    engines = []
    for _ in range(2):
        model, changes = Model(), WeightChanges()
        engines.append((config(model), model, changes))
        changes.watch(engines[-1][0])
    return engines


@pytest.mark.parametrize("name", WORKER_METHODS)
def test_a_worker_that_writes_weights_is_seen(
    two_engines: list[tuple[Any, Model, WeightChanges]], name: str
) -> None:
    """By each of its methods, once, and by the counter of its own engine alone."""
    (first, _, changes), (_, _, others) = two_engines
    worker: Any = object.__new__(CPUWorker)
    worker.parallel_config = first.parallel_config
    getattr(worker, name)()
    assert (changes.count, others.count) == (1, 0)


def test_a_trainer_that_loads_into_the_model_is_seen(
    two_engines: list[tuple[Any, Model, WeightChanges]],
) -> None:
    """Also if it calls the model itself; the weights are loaded all the same."""
    (_, model, changes), (_, _, others) = two_engines
    model.load_weights([])
    assert model.loaded == 1
    assert (changes.count, others.count) == (1, 0)


def test_nobody_is_told_who_is_gone(
    two_engines: list[tuple[Any, Model, WeightChanges]],
) -> None:
    """An engine that ended is counted for no longer."""
    mine = {id(changes) for _, _, changes in two_engines}
    assert mine <= {id(each) for each in weight_changes._WATCHING}
    two_engines.clear()
    assert not mine & {id(each) for each in weight_changes._WATCHING}
