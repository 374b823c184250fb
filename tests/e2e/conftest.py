"""Tiny models from an empty cache, and stock transformers to compare with."""

from collections.abc import Iterator

import pytest

from engines.engine_world import Judge
from inference_worker.demo.comparison import ACCEPTED_SHARE
from inference_worker.demo.reference import load_reference
from inference_worker.model.device import use_threads
from inference_worker.model.model import PagedModel, load_model, model_folder
from inference_worker.model.tiny import TINY_MODELS


@pytest.fixture(scope="session", autouse=True)
def threads() -> None:
    """Uses one thread, because more would wait for each other on tiny models."""
    use_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gives this process and its children a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVSTORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(params=sorted(TINY_MODELS))
def name(request: pytest.FixtureRequest) -> str:
    """Returns the name of each tiny model in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def models(cache: None) -> dict[str, PagedModel]:
    """Loads each tiny model from the folder that the other processes use."""
    del cache
    return {name: load_model(f"tiny-{name}") for name in TINY_MODELS}


@pytest.fixture
def model(models: dict[str, PagedModel], name: str) -> PagedModel:
    """Provides the model of this test."""
    return models[name]


@pytest.fixture(scope="session")
def judge(cache: None) -> Iterator[Judge]:
    """Provides the comparison with stock transformers, and limits the share of near ties."""
    del cache
    made = Judge({name: load_reference(model_folder(f"tiny-{name}")) for name in TINY_MODELS})
    yield made
    assert made.near_ties <= ACCEPTED_SHARE * made.tokens
