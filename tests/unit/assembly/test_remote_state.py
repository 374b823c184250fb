"""The folder that a host keeps for the remote tier, and the keys of tenants."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from kvstore.assembly.remote_state import UnusableStateFolder, open_state_folder, tenant_keys
from kvstore.config.loading import load_config
from kvstore.config.settings import Config

pytestmark = pytest.mark.usefixtures("no_settings_around")
REMOTE = ["--remote-url", "valkeys://cache", "--remote-key-file", "/key"]


def config(*flags: str) -> Config:
    """Returns settings with a remote tier."""
    return load_config([*REMOTE, *flags])


def test_the_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    """It has what an attacker could undo removals with."""
    path = tmp_path / "deep" / "state"
    with ExitStack() as stack:
        assert open_state_folder(path, stack) == path
        assert path.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_reach_is_refused(tmp_path: Path) -> None:
    """The error says what to do."""
    path = tmp_path / "state"
    path.mkdir()
    path.chmod(0o750)
    with ExitStack() as stack, pytest.raises(UnusableStateFolder, match="chmod 700"):
        open_state_folder(path, stack)


def test_a_link_is_refused(tmp_path: Path) -> None:
    """It may lead anywhere by the next start."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "state").symlink_to(tmp_path / "real")
    with ExitStack() as stack, pytest.raises(UnusableStateFolder, match="is a link"):
        open_state_folder(tmp_path / "state", stack)


def test_a_folder_that_cannot_be_made_names_the_setting(tmp_path: Path) -> None:
    """A container without a volume reads what to set."""
    (tmp_path / "file").touch()
    with ExitStack() as stack, pytest.raises(UnusableStateFolder, match="--remote-state-dir"):
        open_state_folder(tmp_path / "file" / "state", stack)


def test_two_servers_do_not_share_it(tmp_path: Path) -> None:
    """The second one says so, and gets it once the first has left."""
    path = tmp_path / "state"
    with ExitStack() as first:
        open_state_folder(path, first)
        with ExitStack() as second, pytest.raises(UnusableStateFolder, match="another server"):
            open_state_folder(path, second, patience=0.1)
    with ExitStack() as third:
        open_state_folder(path, third, patience=0.0)


def test_a_named_tenant_has_the_key_of_the_file(tmp_path: Path) -> None:
    """A tenant without one has none: its name says who it is."""
    key_of = tenant_keys(config("--tenants-file", "/t"), {"alice": b"a" * 32}, tmp_path)
    assert key_of("alice") == b"a" * 32
    assert key_of("bob") == b""


def test_a_uid_has_the_key_of_this_host(tmp_path: Path) -> None:
    """It is another person on another host, and the same one after a restart."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    settings = config("--tenants-file", "/t")
    first = tenant_keys(settings, {}, one)("uid-1000")
    assert len(first) == 32
    assert tenant_keys(settings, {}, one)("uid-1000") == first
    assert tenant_keys(settings, {}, other)("uid-1000") != first
    assert (one / "host.key").stat().st_mode & 0o777 == 0o600


def test_uids_that_are_trusted_are_the_same_everywhere(tmp_path: Path) -> None:
    """The operator said so."""
    assert tenant_keys(config("--remote-trust-uids"), {}, tmp_path)("uid-1000") == b""
    assert not list(tmp_path.iterdir())


def test_a_uid_that_the_file_names_has_the_key_of_the_file(tmp_path: Path) -> None:
    """The table of a uid's tenant may have one, too."""
    key_of = tenant_keys(config("--tenants-file", "/t"), {"uid-7": b"k" * 32}, tmp_path)
    assert key_of("uid-7") == b"k" * 32


@pytest.mark.parametrize(
    ("content", "mode", "said"), [(b"short", 0o600, "5 bytes"), (b"x" * 32, 0o644, "mode 0644")]
)
def test_a_host_s_key_that_is_no_good_is_refused(
    tmp_path: Path, content: bytes, mode: int, said: str
) -> None:
    """A shorter one would be guessed, and one that others read is theirs."""
    path = tmp_path / "host.key"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(UnusableStateFolder, match=said):
        tenant_keys(config("--tenants-file", "/t"), {}, tmp_path)


def test_a_folder_that_is_gone_has_no_key(tmp_path: Path) -> None:
    """A disk that fails at the start is named."""
    with pytest.raises(UnusableStateFolder, match="No such file"):
        tenant_keys(config("--tenants-file", "/t"), {}, tmp_path / "gone")
