"""Tiny models with their stock attention, built once."""

from collections.abc import Iterator

import pytest
from transformers import PreTrainedModel

from inference_worker.model.device import use_threads
from inference_worker.model.tiny import TINY_MODELS


@pytest.fixture(scope="session", autouse=True)
def threads() -> None:
    """Uses one thread, because more would compete with each other and with other tests."""
    use_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the tests out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVSTORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def stock_models() -> dict[str, PreTrainedModel]:
    """Returns each tiny model with its stock attention."""
    return {name: build() for name, build in TINY_MODELS.items()}


@pytest.fixture(params=sorted(TINY_MODELS))
def model(
    request: pytest.FixtureRequest, stock_models: dict[str, PreTrainedModel]
) -> PreTrainedModel:
    """Returns each tiny model in turn. A test that changes it has to restore it."""
    return stock_models[request.param]
