"""Engines by their addresses: each form, and no secret in any of them."""

from pathlib import Path

import pytest

from kvstore.remote.engine_url import is_in_clear, open_engine
from kvstore.remote.errors import CredentialRefused
from kvstore.remote.process.process_engine import ProcessEngine
from kvstore.remote.valkey.address import UnusableEngineAddress
from kvstore.remote.valkey.cluster.cluster_engine import ClusterEngine
from kvstore.remote.valkey.valkey_engine import ValkeyEngine


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("valkey+unix:///nowhere/v.sock", ValkeyEngine),
        ("valkey://127.0.0.1:1", ValkeyEngine),
        ("valkeys://127.0.0.1:1", ValkeyEngine),
        ("valkey+sentinel://127.0.0.1:1,127.0.0.1:2/pages", ValkeyEngine),
        ("valkey+cluster://127.0.0.1:1,127.0.0.1:2", ClusterEngine),
        ("valkeys+cluster://127.0.0.1:1", ClusterEngine),
        ("file:///nowhere", ProcessEngine),
    ],
)
def test_each_address_has_its_engine(url: str, kind: type) -> None:
    """No server is waited for."""
    engine = open_engine(url)
    assert isinstance(engine, kind)
    engine.close()


def test_an_address_of_s3_has_its_engine() -> None:
    """The prefix and the server are optional."""
    pytest.importorskip("obstore", reason="needs the package obstore: run make venv")
    for url in ("s3://bucket", "s3://bucket/a/b?endpoint=http://127.0.0.1:1&region=x"):
        engine = open_engine(url)
        assert engine.capabilities.revisions
        engine.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis://host",
        "s3://",
        "s3:///prefix",
        "s3://bucket?secret=x",
        "file://relative/path",
        "file:///path?x=1",
        "http://host/x",
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    """The message says how to write one."""
    with pytest.raises(UnusableEngineAddress, match=r"write|query"):
        open_engine(url)


@pytest.mark.parametrize(
    "url",
    [
        "valkey://:hunter2@host",
        "valkeys+cluster://user:hunter2@host,host",
        "valkey+sentinel://host,:hunter2@host/pages",
        "valkey://user:hunter2/more@host",
        "s3://key:hunter2@bucket",
        "s3://bucket?endpoint=http://key:hunter2@host",
        "redis://:hunter2@host",
        "file://user:hunter2@host/path",
    ],
)
def test_a_secret_in_an_address_is_refused(url: str) -> None:
    """The message does not repeat it, since messages go to logs."""
    for ask in (open_engine, is_in_clear):
        if url.startswith("file") and ask is is_in_clear:
            continue
        with pytest.raises(UnusableEngineAddress) as raised:
            ask(url)
        assert "hunter2" not in str(raised.value)


def test_only_valkey_has_replicas_to_wait_for() -> None:
    """A setting without an effect would be a promise that nobody keeps."""
    for url in ("file:///nowhere", "s3://bucket"):
        with pytest.raises(UnusableEngineAddress, match="replicas"):
            open_engine(url, replicas=1)


def test_a_credential_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """S3 needs it at once, since its keys are not asked for again."""
    pytest.importorskip("obstore", reason="needs the package obstore: run make venv")
    with pytest.raises(CredentialRefused):
        open_engine("s3://bucket", credential=tmp_path / "missing")


@pytest.mark.parametrize(
    ("url", "in_clear"),
    [
        ("valkey://host", True),
        ("valkey+cluster://host", True),
        ("valkey+sentinel://host/pages", True),
        ("valkeys://host", False),
        ("valkeys+cluster://host", False),
        ("valkeys+sentinel://host/pages", False),
        ("valkey+unix:///v.sock", False),
        ("file:///path", False),
        ("s3://bucket", False),
        ("s3://bucket?endpoint=https://host", False),
        ("s3://bucket?endpoint=http://host", True),
    ],
)
def test_an_address_tells_whether_it_is_in_clear(url: str, *, in_clear: bool) -> None:
    """Servers refuse those unless the operator insists."""
    assert is_in_clear(url) is in_clear
