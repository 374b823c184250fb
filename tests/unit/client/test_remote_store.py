"""The settings of a store on another host."""

from pathlib import Path

import pytest

from kvstore_client import RemoteStore, connect_remote_admin, errors


@pytest.mark.parametrize(
    ("said", "settings"),
    [
        ("HOST:PORT", {"address": "host"}),
        ("HOST:PORT", {"address": ":7400"}),
        ("HOST:PORT", {"address": "host:http"}),
        ("leave them out", {"insecure": True, "tls_ca": "ca.pem"}),
        ("go together", {"tls_cert": "x.crt"}),
        ("go together", {"tls_key": "x.key"}),
        ("no token has", {"token": "a\nb"}),
        ("no token has", {"token": "é"}),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    said: str, settings: dict[str, object]
) -> None:
    """Settings that do not fit together are refused before there is a connection."""
    with pytest.raises(ValueError, match=said):
        RemoteStore(**({"address": "host:7400", "token": "t"} | settings))  # type: ignore[arg-type]


def test_somebody_has_to_call() -> None:
    """An admin of a remote store needs a token or a certificate."""
    with (
        pytest.raises(ValueError, match="who calls"),
        connect_remote_admin(RemoteStore(address="host:7400")),
    ):
        pass


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    """A missing file is named in the error."""
    remote = RemoteStore(address="host:7400", token="t", tls_ca=tmp_path / "ca.pem")  # noqa: S106
    with pytest.raises(ValueError, match=r"ca\.pem: No such file"):
        remote.calls()


def test_a_token_is_not_shown() -> None:
    """The repr of the settings does not show the token."""
    assert "recognisable" not in repr(RemoteStore(address="a:1", token="recognisable"))  # noqa: S106


def test_nobody_at_the_address_is_unavailable() -> None:
    """A remote store that does not answer raises StoreUnavailable."""
    remote = RemoteStore(address="127.0.0.1:1", token="t", insecure=True)  # noqa: S106
    with connect_remote_admin(remote, timeout=30) as admin, pytest.raises(errors.StoreUnavailable):
        admin.stats()
