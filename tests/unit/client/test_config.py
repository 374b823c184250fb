"""The client's settings."""

import os
from pathlib import Path

import pytest

from kvstore_client.config import ClientConfig, ContiguousMemory, declared_cuda_mps


def test_the_defaults_are_valid() -> None:
    """The defaults are valid, and the lease's TTL is longer than a call's timeout."""
    config = ClientConfig()
    assert config.call_timeout < config.ttl
    assert config.wait_for_device is None


@pytest.mark.parametrize(
    "name", ["ttl", "call_timeout", "connect_timeout", "first_backoff", "close_timeout"]
)
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_time_has_to_be_positive(name: str, value: float) -> None:
    """A time that is zero, negative or NaN is refused by its name."""
    with pytest.raises(ValueError, match=name):
        ClientConfig(**{name: value})


def test_a_device_is_a_number() -> None:
    """The first device has the number 0, and none has a negative one."""
    assert ClientConfig(host_memory_device=0).host_memory_device == 0
    with pytest.raises(ValueError, match="host_memory_device is -1"):
        ClientConfig(host_memory_device=-1)


def test_times_have_an_order() -> None:
    """A call timeout above the store's limit, and backoffs in the wrong order, are refused."""
    assert ClientConfig(call_timeout=60).call_timeout == 60
    with pytest.raises(ValueError, match="at most 60"):
        ClientConfig(call_timeout=61)
    with pytest.raises(ValueError, match="first_backoff"):
        ClientConfig(first_backoff=2, longest_backoff=1)


def test_cuda_mps_is_seen_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process declares MPS if its environment makes it an MPS client. The setting can deny it."""
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    assert not ClientConfig().cuda_mps
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")
    assert ClientConfig().cuda_mps
    assert not ClientConfig(cuda_mps=False).cuda_mps


def test_cuda_mps_is_seen_by_the_daemon_s_pipe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the environment variable, a control pipe in the default folder means MPS."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "")
    assert not declared_cuda_mps(tmp_path)
    os.mkfifo(tmp_path / "control")
    assert declared_cuda_mps(tmp_path)


def test_a_range_of_no_addresses_is_refused() -> None:
    """Contiguous memory is off by default, and needs addresses."""
    assert ClientConfig().contiguous_memory is None
    assert ContiguousMemory().reserved_bytes is None
    with pytest.raises(ValueError, match="reserved_bytes is 0: set at least 1"):
        ContiguousMemory(reserved_bytes=0)
