"""The client's settings."""

import os
from pathlib import Path

import pytest

from kvstore_client.config import ClientConfig, declared_cuda_mps


def test_the_defaults_are_valid() -> None:
    """A configuration needs nothing, and its lease outlives a slow call."""
    config = ClientConfig()
    assert config.call_timeout < config.ttl
    assert config.wait_for_device is None


@pytest.mark.parametrize(
    "name", ["ttl", "call_timeout", "connect_timeout", "first_backoff", "close_timeout"]
)
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_time_has_to_be_positive(name: str, value: float) -> None:
    """A time of zero, below zero or of no value is refused by name."""
    with pytest.raises(ValueError, match=name):
        ClientConfig(**{name: value})


def test_times_have_an_order() -> None:
    """A deadline beyond what a store allows and backoffs in the wrong order are refused."""
    assert ClientConfig(call_timeout=60).call_timeout == 60
    with pytest.raises(ValueError, match="at most 60"):
        ClientConfig(call_timeout=61)
    with pytest.raises(ValueError, match="first_backoff"):
        ClientConfig(first_backoff=2, longest_backoff=1)


def test_cuda_mps_is_seen_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that CUDA would make a client of MPS declares so, unless it is told not to."""
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    assert not ClientConfig().cuda_mps
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")
    assert ClientConfig().cuda_mps
    assert not ClientConfig(cuda_mps=False).cuda_mps


def test_cuda_mps_is_seen_by_the_daemon_s_pipe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the variable a control pipe in the default folder is a daemon."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "")
    assert not declared_cuda_mps(tmp_path)
    os.mkfifo(tmp_path / "control")
    assert declared_cuda_mps(tmp_path)
