"""The connector calls vLLM's own copies and hooks as vLLM 0.32 has them."""

import inspect

import numpy as np
import pytest
import torch
from vllm import _custom_ops as ops
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

from kvstore_vllm.blocks.swap_blocks import swap_blocks
from kvstore_vllm.connector import KvstoreConnector


def test_copies_by_address_are_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operation gets int64 tensors of the CPU, and the order of the sources."""
    names = list(inspect.signature(ops.swap_blocks_batch).parameters)
    assert names == ["src_ptrs", "dst_ptrs", "sizes", "is_src_access_order_any"]
    found: list[tuple[torch.Tensor, ...]] = []

    def record(
        src_ptrs: torch.Tensor,
        dst_ptrs: torch.Tensor,
        sizes: torch.Tensor,
        is_src_access_order_any: bool = False,  # noqa: FBT001, FBT002  # as vLLM has it
    ) -> None:
        assert is_src_access_order_any
        found.append((src_ptrs, dst_ptrs, sizes))

    monkeypatch.setattr(ops, "swap_blocks_batch", record)
    arrays = [np.array([number], np.int64) for number in (16, 32, 8)]
    swap_blocks(*arrays, any_order=True)
    (tensors,) = found
    assert [each.tolist() for each in tensors] == [[16], [32], [8]]
    assert {(each.dtype, each.device.type) for each in tensors} == {(torch.int64, "cpu")}


@pytest.mark.parametrize("hook", ["handle_preemptions", "start_load_kv", "wait_for_save"])
def test_hooks_have_vllms_arguments(hook: str) -> None:
    """A hook that vLLM renamed would never be called."""
    ours, theirs = getattr(KvstoreConnector, hook), getattr(KVConnectorBase_V1, hook)
    assert ours is not theirs
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
