"""The remote tier by the settings: what is checked before the server binds, and what is made."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvstore.assembly import remote_setup, tier_setup
from kvstore.assembly.access_rules import Access
from kvstore.assembly.remote_setup import RemoteAccess, read_remote, remote_tier
from kvstore.config.loading import load_config
from kvstore.config.settings import Config
from kvstore.config.show import Exit, config_command
from kvstore.remote.secret.sealing import PageSealer
from kvstore.rpc.attach.table import SocketAccess
from kvstore.service.clock import MONOTONIC
from kvstore.service.page_io.slow_tier import TierKind
from kvstore.service.tenancy.tenants_file import TenantsFile
from kvstore.storage.write_admission import FirstTouch, SecondTouch
from wire.certificates import Authority

KEY = bytes(range(32))
Settings = Callable[..., Config]
pytestmark = pytest.mark.usefixtures("no_settings_around")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Provides settings with a key, and an address of a socket where nobody listens."""
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_bytes(KEY)

    def made(*more: str, url: str = f"valkey+unix://{tmp_path}/v.sock") -> Config:
        return load_config(
            ["--remote-url", url, "--remote-key-file", str(key), "--remote-trust-uids", *more]
        )

    return made


def error_of(config: Config) -> str:
    """Returns the one line about settings that cannot be used."""
    with pytest.raises(ValueError, match=r"^remote_") as raised:
        read_remote(config)
    return str(raised.value)


def test_without_an_address_there_is_no_tier() -> None:
    """A server of one host needs none of it."""
    assert read_remote(load_config([])) is None


def test_a_secret_is_read_and_not_shown(settings: Settings) -> None:
    """Nothing that prints the settings' parts has it."""
    access = read_remote(settings())
    assert access is not None
    assert access.secret == KEY
    assert repr(KEY) not in repr(access)


def test_another_producer_has_another_secret(settings: Settings) -> None:
    """Hosts of two kinds of machines never meet."""
    found = [read_remote(settings("--remote-producer", name)) for name in ("h100", "h200")]
    assert len({KEY, *(each.secret for each in found if each is not None)}) == 3


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [(b"short", 0o600, "has 5 bytes"), (KEY, 0o644, "chmod"), (None, 0, "No such file")],
)
def test_a_key_that_is_none_is_refused_with_how_to_make_one(
    settings: Settings, tmp_path: Path, content: bytes | None, mode: int, said: str
) -> None:
    """A short key, one that others read, and none."""
    path = tmp_path / "key"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    error = error_of(settings())
    assert said in error
    assert "head -c 32 /dev/urandom" in error


@pytest.mark.parametrize(
    "url", ["valkey://cache", "valkey+cluster://a:1,b:2", "valkey+sentinel://a:1/main"]
)
def test_plain_tcp_is_refused_with_the_way_out(settings: Settings, url: str) -> None:
    """It needs a word of the operator, which the error names."""
    assert "--remote-insecure" in error_of(settings(url=url))
    assert read_remote(settings("--remote-insecure", url=url)) is not None


@pytest.mark.parametrize("url", ["http://cache", "valkeys://", "valkeys://cache/path?x=1"])
def test_an_address_of_no_engine_is_refused(settings: Settings, url: str) -> None:
    """The engine's own words say how to write one."""
    try:
        config = settings(url=url)
    except ValueError:
        return
    assert error_of(config).startswith("remote_url: ")


def test_a_credential_that_others_read_is_refused(settings: Settings, tmp_path: Path) -> None:
    """It is read before the server binds, and again for each connection."""
    path = tmp_path / "credential"
    path.write_text("kvstore\npassword\n")
    path.chmod(0o644)
    error = error_of(settings("--remote-credential-file", str(path)))
    assert error.startswith("remote_credential_file ")
    assert "password" not in error.replace(str(path), "")
    path.chmod(0o600)
    assert read_remote(settings("--remote-credential-file", str(path))) is not None


def test_authorities_are_those_of_the_file_alone(settings: Settings, tmp_path: Path) -> None:
    """A file without a certificate is refused."""
    path = tmp_path / "ca.pem"
    path.write_text("no certificate")
    config = settings("--remote-ca-file", str(path), url="valkeys://cache")
    assert "no certificate in PEM" in error_of(config)
    path.unlink()
    assert "No such file" in error_of(config)
    authority = Authority(tmp_path)
    config = settings("--remote-ca-file", str(authority.cert), url="valkeys://cache")
    access = read_remote(config)
    assert access is not None
    assert access.tls is not None
    assert len(access.tls.get_ca_certs()) == 1


def test_without_the_extra_the_error_has_the_line_to_install_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the missing package, before anything of it is imported."""
    monkeypatch.setattr(remote_setup, "PACKAGES", ("no_such_package",))
    error = error_of(settings())
    assert "no_such_package" in error
    assert "pip install '.[remote]'" in error


def test_a_server_of_one_host_imports_nothing_of_the_extra() -> None:
    """The server's modules do without the packages."""
    program = (
        "import sys, kvstore.server; "
        "sys.exit(bool({'cryptography', 'obstore', 'kvstore.remote.engine'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("policy", "admission", "is_written"),
    [
        ("through", FirstTouch, True),
        ("second-touch", SecondTouch, True),
        ("off", SecondTouch, False),
    ],
)
def test_a_tier_is_made_without_its_engine(
    settings: Settings, tmp_path: Path, policy: str, admission: type, *, is_written: bool
) -> None:
    """It waits for nothing, and has the policy of the settings."""
    config = settings("--remote-write", policy)
    tier = remote_tier(config, RemoteAccess(KEY), 1, MONOTONIC, tmp_path)
    try:
        assert (tier.kind, tier.number, tier.is_written) == (TierKind.REMOTE, 1, is_written)
        assert isinstance(tier.admission, admission)
        assert tier.about is not None
        assert tier.about.key_id == PageSealer(KEY).key_id
        assert (tier.about.address, tier.about.writes) == (config.remote_url, policy)
        tier.about.ask_engine()
        assert tier.about.findings == ()
        assert tier.use().remote is not None
    finally:
        tier.close()


def test_the_disk_comes_before_the_remote_tier(settings: Settings, tmp_path: Path) -> None:
    """Page stores are numbered in the order in which they are asked; a missing disk has none."""
    slab = ["--tier3-path", str(tmp_path / "slab"), "--tier3-bytes", "1MiB"]
    for more, numbers in (([], [None, 0]), (slab, [0, 1])):
        config = settings("--tier1-bytes", "8MiB", *more)
        access = Access(SocketAccess(), None, TenantsFile.empty(), None, read_remote(config))
        with ExitStack() as stack:
            config = config.model_copy(update={"remote_state_dir": tmp_path / "state"})
            tiers, key_of = tier_setup.tiers_below(config, access, MONOTONIC, stack)
            present = [each.number if each.page_store else None for each in tiers]
            assert present == numbers
            assert key_of("uid-1") == b""


def test_config_check_reads_the_key(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator sees a missing key before a restart."""
    config = settings()
    flags = ["--remote-url", str(config.remote_url), "--remote-key-file", str(tmp_path / "key")]
    assert config_command(["check", *flags, "--remote-trust-uids"]) == Exit.FINE
    (tmp_path / "key").unlink()
    assert config_command(["check", *flags, "--remote-trust-uids"]) == Exit.WRONG
    assert "remote_key_file" in capsys.readouterr().err
