"""An adapter is identified by its weights, not by its name."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvstore_client.testing import wait_until
from kvstore_vllm.identity.adapters import AdapterDigests, UndigestableAdapter
from kvstore_vllm.identity.request_key import RequestKey
from vllm_rig.vllm_stand_ins import Lora, PromptRequest


def make_adapter(folder: Path, value: float) -> str:
    """Writes an adapter of one matrix and returns its path."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text('{"r": 8}')
    save_file({"a": np.full((8, 8), value, np.float32)}, folder / "adapter_model.safetensors")
    return str(folder)


def salt_of(lora: Lora | None, adapters: AdapterDigests, cache_salt: str | None = None) -> bytes:
    """Returns the salt of a request with an adapter."""
    request = PromptRequest([1, 2, 3], cache_salt, lora)
    key = RequestKey.of(request, adapters=adapters)
    assert key is not None
    return key.salt


def test_adapters_differ_by_their_weights(tmp_path: Path) -> None:
    """Two adapters of one name differ, and one adapter under two names is the same."""
    first, second = make_adapter(tmp_path / "a", 1), make_adapter(tmp_path / "b", 2)
    again = make_adapter(tmp_path / "c", 1)
    here, there = AdapterDigests(), AdapterDigests()
    salt = salt_of(Lora(first), here)
    assert len(salt) == 32
    assert salt_of(Lora(second), there) != salt
    assert salt_of(Lora(again, "another", 5), there) == salt
    assert salt_of(Lora(first), here, "user") not in {salt, salt_of(None, here, "user")}


def test_what_the_engine_does_with_adapters_tells(tmp_path: Path) -> None:
    """The dtype of an adapter's computation is part of its digest."""
    path = make_adapter(tmp_path / "a", 1)
    half, full = AdapterDigests({"lora_dtype": "half"}), AdapterDigests({"lora_dtype": "full"})
    assert len({salt_of(Lora(path), each) for each in (AdapterDigests(), half, full)}) == 3


def test_an_adapter_that_changed_is_in_doubt_until_it_has_another_number(tmp_path: Path) -> None:
    """A changed adapter is refused, because the engine may have loaded either version."""
    path = make_adapter(tmp_path / "a", 1)
    adapters = AdapterDigests()
    before = salt_of(Lora(path), adapters)
    weights = tmp_path / "a" / "adapter_model.safetensors"
    stamp = weights.stat()

    def changed_later() -> bool:
        make_adapter(tmp_path / "a", 2)
        return weights.stat().st_mtime_ns > stamp.st_mtime_ns

    # A file system's time advances in steps.
    assert wait_until(changed_later)
    with pytest.raises(UndigestableAdapter, match="changed"):
        salt_of(Lora(path), adapters)
    make_adapter(tmp_path / "a", 1)
    times = (stamp.st_atime_ns, stamp.st_mtime_ns)
    os.utime(weights, ns=times)
    with pytest.raises(UndigestableAdapter, match="changed"):
        salt_of(Lora(path), adapters)
    assert salt_of(Lora(path, lora_int_id=2), adapters) == before


def test_an_adapter_that_is_not_there_is_not_cacheable(tmp_path: Path) -> None:
    """A missing folder, an empty one and a file of another kind are not cacheable."""
    adapters = AdapterDigests()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name in ("absent", "empty", "file"):
        with pytest.raises(UndigestableAdapter, match="adapter"):
            salt_of(Lora(str(tmp_path / name)), adapters)
