"""A layer that keeps every token shows attention the same as transformers' own layers."""

import pytest
import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from kvstore_transformers.token_layer import TokenLayer

HEADS, SIZE, WINDOW = 2, 4, 6
# Single tokens before, at and after the window's end, chunks across it, more than the capacity.
CHUNKS = (3, 1, 1, 1, 1, 1, 7, 1, 2, 40, 1, 1)


def states(tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns keys and values of a model's shape."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, 1, HEADS, tokens, SIZE, generator=generator)
    return keys, values


def token_layer(window: int | None = None, capacity: int = 4) -> TokenLayer:
    """Returns an empty layer."""
    return TokenLayer(torch.empty(2, capacity, HEADS, SIZE), window)


@pytest.mark.parametrize("window", [None, WINDOW])
def test_attention_sees_what_it_sees_of_a_stock_layer(window: int | None) -> None:
    """Keys, values, lengths and mask sizes are those of the stock layer, chunk by chunk."""
    ours = token_layer(window)
    stock = DynamicLayer() if window is None else DynamicSlidingWindowLayer(window)
    assert ours.is_sliding == stock.is_sliding
    for number, count in enumerate(CHUNKS):
        assert ours.get_mask_sizes(count) == stock.get_mask_sizes(count)
        keys, values = states(count, number)
        for mine, theirs in zip(ours.update(keys, values), stock.update(keys, values), strict=True):
            assert torch.equal(mine, theirs)
        assert ours.get_seq_length() == stock.get_seq_length()


@pytest.mark.parametrize("window", [None, WINDOW])
def test_every_token_is_kept_in_the_order_of_pages(window: int | None) -> None:
    """The rows have all tokens, also those that a window hides, through growth and crops."""
    layer = token_layer(window)
    every = [states(count, number) for number, count in enumerate(CHUNKS)]
    for keys, values in every:
        layer.update(keys, values)
        layer.update(*states(2, 99))
        layer.crop(-2)
    for kv in (0, 1):
        wanted = torch.cat([each[kv][0] for each in every], dim=1).transpose(0, 1)
        assert torch.equal(layer.rows[kv, : layer.count], wanted)
    assert torch.equal(layer.keys[0].transpose(0, 1), layer.rows[0, : layer.count])
    layer.reset()
    assert layer.get_seq_length() == layer.keys.shape[2] == 0


@pytest.mark.parametrize("removed", [1, -4])
def test_more_than_there_is_cannot_be_cropped(removed: int) -> None:
    """A crop of too many tokens, or of a positive number, is refused."""
    layer = token_layer()
    layer.update(*states(3, 0))
    with pytest.raises(ValueError, match="is not from -3 to 0"):
        layer.crop(removed)


def test_other_states_are_refused() -> None:
    """A batch, another dtype and other heads do not fit into pages, so they are refused."""
    layer = token_layer()
    keys, values = states(2, 0)
    for strange in (keys.expand(2, -1, -1, -1), keys.double(), keys[:, :1]):
        with pytest.raises(ValueError, match="of one sequence are"):
            layer.update(strange, values)
    assert layer.count == 0


def test_it_stays_one_sequence() -> None:
    """Beams and batches are refused."""
    layer = token_layer()
    for change in (
        lambda: layer.reorder_cache(torch.tensor([0])),
        lambda: layer.batch_repeat_interleave(2),
        lambda: layer.batch_select_indices(torch.tensor([0])),
    ):
        with pytest.raises(ValueError, match="is one sequence"):
            change()


def test_memory_of_inference_mode_can_be_written_outside() -> None:
    """Memory that grew in inference mode can be written outside of it."""
    layer = token_layer()
    with torch.inference_mode():
        layer.update(*states(9, 0))
    layer.update(*states(1, 1))
    assert not layer.rows.is_inference()
