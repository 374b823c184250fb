"""A forward is refused if its keys and values depend on more than the tokens and their places."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from kvstore_transformers.forward_watch import ForwardWatch
from kvstore_transformers.model_probe import probe_model
from kvstore_transformers.prefix_cache import PrefixCache

IDS = torch.arange(12)


class Watched:
    """A model with a cache for a prompt and the watch on it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.cache = PrefixCache(probe_model(model), model.dtype, model.device, 8)
        self.watch = ForwardWatch(model, self.cache, IDS)

    def forward(self, **keywords: Any) -> None:  # noqa: ANN401 - a model's own
        """Runs a forward with the cache and without gradients."""
        with torch.no_grad():
            self.model(**{"past_key_values": self.cache, **keywords})


@pytest.fixture
def watched(stock_models: dict[str, PreTrainedModel]) -> Iterator[Watched]:
    """Returns a model that is watched until the test ends."""
    made = Watched(stock_models["llama"])
    yield made
    made.watch.stop()


STRANGE: dict[str, tuple[dict[str, Any], str]] = {
    "batch": ({"input_ids": IDS.expand(2, -1)}, "one sequence is computed"),
    "embeddings": ({"inputs_embeds": torch.zeros(1, 3, 128)}, "'inputs_embeds'"),
    "other tokens": ({"input_ids": IDS[None].flip(1)}, "not the prompt's tokens"),
    "padding": (
        {"input_ids": IDS[None], "attention_mask": torch.tensor([[0] + [1] * 11])},
        "nothing masked",
    ),
    "mask of one's own": (
        {"input_ids": IDS[None], "attention_mask": torch.zeros(1, 1, 12, 12)},
        "only a row of ones",
    ),
    "shifted": (
        {"input_ids": IDS[None], "position_ids": torch.arange(1, 13)[None]},
        "follow each other from 0",
    ),
    "positions of more": (
        {"input_ids": IDS[None, :3], "position_ids": torch.arange(12)[None]},
        "one position for each",
    ),
    "no cache": ({"input_ids": IDS[None], "use_cache": False}, "use_cache is False"),
    "an image": ({"input_ids": IDS[None], "pixel_values": torch.zeros(1)}, "'pixel_values'"),
}


@pytest.mark.parametrize("kind", sorted(STRANGE))
def test_what_is_not_the_plain_prompt_is_refused(watched: Watched, kind: str) -> None:
    """A wrong forward is refused before anything is computed, so the cache is unchanged."""
    keywords, reason = STRANGE[kind]
    with pytest.raises(ValueError, match=reason):
        watched.forward(**keywords)
    assert (watched.cache.token_count, watched.cache.settled) == (0, True)


def test_the_prompt_is_known_by_its_tokens(watched: Watched) -> None:
    """A prompt may come in chunks and as positional arguments. Any tokens may follow it."""
    with torch.no_grad():
        watched.model(IDS[None, :5], torch.ones(1, 5), torch.arange(5)[None], watched.cache)
    watched.forward(input_ids=torch.tensor([[*range(5, 12), 200]]))
    watched.forward(input_ids=torch.tensor([[201]]), position_ids=torch.tensor([[13]]))
    assert watched.cache.token_ids() == [*range(12), 200, 201]
    assert watched.watch.complete()


def test_what_says_nothing_is_nothing_strange(watched: Watched) -> None:
    """A model of texts and images accepts several ways to pass no images."""
    nothing = {"pixel_values": None, "mm_encoder_outputs": {}, "output_attentions": False}
    watched.forward(input_ids=IDS[None], **nothing)
    assert watched.watch.complete()


def test_other_caches_are_nobody_s_business(watched: Watched) -> None:
    """A forward without this cache is not checked."""
    watched.forward(input_ids=IDS.expand(2, -1), past_key_values=None)
    assert watched.watch.complete()


def test_training_and_gradients_are_refused(watched: Watched) -> None:
    """Dropout makes keys that nobody else can use. Keys with gradients cannot be kept."""
    with pytest.raises(ValueError, match=r"torch\.no_grad"):
        watched.model(input_ids=IDS[None], past_key_values=watched.cache)
    watched.model.train()
    try:
        with pytest.raises(ValueError, match=r"its eval\(\)"):
            watched.forward(input_ids=IDS[None])
    finally:
        watched.model.eval()


def test_an_output_at_another_place_is_found_in_the_end(watched: Watched) -> None:
    """Wrong places of output tokens are found at the end, so no right token waits for a device."""
    watched.forward(input_ids=IDS[None])
    watched.forward(input_ids=torch.tensor([[200]]), position_ids=torch.tensor([[20]]))
    with pytest.raises(ValueError, match="follow each other from 0"):
        watched.watch.complete()


def test_what_was_computed_beside_the_model_is_not_trusted(watched: Watched) -> None:
    """A forward of only a part of the model is not watched, so its result is not trusted."""
    watched.forward(input_ids=IDS[None])
    with torch.no_grad():
        watched.model.model(input_ids=torch.tensor([[200]]), past_key_values=watched.cache)
    assert not watched.watch.complete()


def test_a_forward_that_failed_ends_the_prompt(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt ends with a failed forward, because its layers no longer agree."""
    with monkeypatch.context() as patch:
        patch.setattr(watched.cache.token_layers[2], "update", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            watched.forward(input_ids=IDS[None])
    with pytest.raises(ValueError, match="begin the prompt again"):
        watched.forward(input_ids=IDS[None])
    assert not watched.watch.complete()


def test_a_prompt_that_comes_whole_is_computed_from_where_it_is_cached(watched: Watched) -> None:
    """A whole prompt is known by its positions, and another one is refused, cached or not."""
    watched.forward(input_ids=IDS[None, :9])
    whole = {"position_ids": torch.arange(14)[None], "attention_mask": torch.ones(1, 14)}
    ids = torch.tensor([[*range(12), 200, 201]])
    with pytest.raises(ValueError, match="not the prompt's tokens"):
        watched.forward(input_ids=torch.where(ids == 3, 4, ids), **whole)
    watched.forward(input_ids=ids, **whole)
    assert watched.cache.token_ids() == ids[0].tolist()
    assert watched.watch.complete()
