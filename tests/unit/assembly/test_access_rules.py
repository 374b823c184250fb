"""The settings of who may call the store."""

import grp
import os
from hashlib import sha256
from pathlib import Path

import pytest

from kvstore.assembly.access_rules import Access, event_addresses, read_access
from kvstore.config.loading import load_config
from kvstore.core.values.limits import Quotas, QuotaTable
from kvstore.core.values.requests import Identity
from kvstore.errors import CredentialRequired
from kvstore.kv_events.curve_keys import CurveKeys
from kvstore.rpc.attach.table import SocketAccess
from kvstore.service.tenancy.credentials import Credentials
from kvstore.service.tenancy.tenant_lookup import Tenants
from wire.certificates import Authority
from wire.own_logs import own_logs

TOKEN = "kvs_token"  # noqa: S105 - for this test alone
WITH_TOKEN = (
    f'[tenants.alice]\nuids = [1000]\ntoken_sha256 = ["{sha256(TOKEN.encode()).hexdigest()}"]'
)
WITH_NAME = '[tenants.alice]\ncertificate_names = ["alice"]'
pytestmark = pytest.mark.usefixtures("no_settings_around")


@pytest.fixture
def tenants(tmp_path: Path) -> Path:
    """Provides a tenants file with a token."""
    return written(tmp_path, WITH_TOKEN)


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    """Writes a tenants file and returns its path."""
    path = folder / "tenants.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def access_of(*flags: str) -> Access:
    """Returns the access rules that some flags set."""
    return read_access(load_config(flags))


def test_without_settings_there_are_uids_and_unix_sockets() -> None:
    """By default only unix sockets of the owner are open, with tenants named by uid and no TLS."""
    access = access_of()
    assert (access.sockets, access.tenants_path, access.tls) == (SocketAccess(), None, None)
    assert access.known.quotas.of("uid-1") == Quotas()


def test_a_group_goes_by_name_or_number() -> None:
    """A group may be given by name or number. An unknown group is named in the error."""
    group = grp.getgrgid(os.getgid())
    for spelt in (group.gr_name, str(group.gr_gid)):
        assert access_of("--socket-group", spelt).sockets == SocketAccess(group.gr_gid)
    with pytest.raises(ValueError, match="socket_group: there is no group 'nobody knows'"):
        access_of("--socket-group", "nobody knows")


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("[tenants.a]\nuid = 1", 0o600, "tenants.a.uid: no such key"),
        (WITH_TOKEN, 0o644, "others can read it"),
        (WITH_NAME, 0o646, "others can change it"),
    ],
)
def test_a_tenants_file_that_is_no_good_is_refused(
    tmp_path: Path, text: str, mode: int, said: str
) -> None:
    """An unusable tenants file is refused with the setting, the path and the reason."""
    path = written(tmp_path, text, mode)
    with pytest.raises(ValueError, match=f"^tenants_file {path}.*: {said}"):
        access_of("--tenants-file", str(path))


def test_a_file_without_tokens_may_be_read(tmp_path: Path) -> None:
    """A tenants file without tokens may be readable by all, because it has no secret."""
    assert access_of("--tenants-file", str(written(tmp_path, WITH_NAME, 0o644))).tls is None


def test_an_address_that_nobody_could_call_is_refused(tmp_path: Path) -> None:
    """A TCP address is refused if no tenant has a token and no certificates are asked for."""
    authority = Authority(tmp_path)
    files = authority.issue("server", hosts=["localhost"])
    flags = ["--tenants-file", str(written(tmp_path, WITH_NAME)), "--listen", "localhost:0"]
    tls = ["--tls-cert", str(files.cert), "--tls-key", str(files.key)]
    for more in (["--insecure-tcp"], tls):
        with pytest.raises(ValueError, match=r"no tenant of .* has a token: .kvstore-ctl token"):
            access_of(*flags, *more)
    assert access_of(*flags, *tls, "--tls-client-ca", str(authority.cert)).tls is not None


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, tenants: Path) -> None:
    """A key file that others can read is refused, because its reader could pose as the server."""
    files = Authority(tmp_path).issue("server", hosts=["localhost"])
    files.key.chmod(0o644)
    flags = ["--tenants-file", str(tenants), "--listen", "localhost:0"]
    with pytest.raises(ValueError, match="others can read it"):
        access_of(*flags, "--tls-cert", str(files.cert), "--tls-key", str(files.key))


def test_the_tenants_file_is_read_again(tmp_path: Path, tenants: Path) -> None:
    """A reload replaces the tenants with those in the file now."""
    access = access_of("--tenants-file", str(tenants))
    credentials = Credentials(frozenset(), access.known.tenants)
    assert credentials.identify(TOKEN).identity == Identity("alice")
    written(tmp_path, "[tenants.bob]\nuids = [1000]\nleases = 1")
    with own_logs() as lines:
        assert access.reload(credentials, list[QuotaTable]().append)
    assert [(each["event"], each["quotas_changed"]) for each in lines] == [("tenants_read", True)]
    assert credentials.identity_of(1000) == Identity("bob")
    with pytest.raises(CredentialRequired):
        credentials.identify(TOKEN)


def test_a_file_that_became_no_good_changes_nothing(tmp_path: Path, tenants: Path) -> None:
    """A reload of an unusable file logs the reason and keeps the old tenants."""
    access = access_of("--tenants-file", str(tenants))
    credentials = Credentials(frozenset(), access.known.tenants)
    written(tmp_path, "[tenants.alice")
    with own_logs() as lines:
        assert not access.reload(credentials, list[QuotaTable]().append)
    assert [each["event"] for each in lines] == ["tenants_not_read"]
    assert credentials.identify(TOKEN).identity == Identity("alice")


def test_a_rate_that_changed_is_handed_on(tmp_path: Path, tenants: Path) -> None:
    """A reload applies a new request rate at once. Other quotas wait for a restart."""
    access = access_of("--tenants-file", str(tenants))
    written(tmp_path, f"{WITH_TOKEN}\nrequests_per_second = 2.0")
    told: list[QuotaTable] = []
    with own_logs() as lines:
        assert access.reload(Credentials(frozenset(), access.known.tenants), told.append)
    assert [each["quotas_changed"] for each in lines] == [False]
    assert told[0].of("alice").requests_per_second == 2.0


def test_without_a_tenants_file_there_is_nothing_to_read() -> None:
    """A reload without a tenants file logs nothing and succeeds."""
    with own_logs() as lines:
        assert access_of().reload(Credentials(frozenset()), list[QuotaTable]().append)
    assert lines == []


EVENTS = ("--kv-events", "--kv-events-bind")
SECRET = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"  # noqa: S105 - for this test alone


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Provides a file with a secret key of CURVE."""
    path = tmp_path / "events.key"
    path.touch(mode=0o600)
    path.write_text(f"{SECRET}\n", encoding="ascii")
    return path


def test_an_address_alone_is_of_the_server_s_user(tmp_path: Path) -> None:
    """That is a tenant of the file, if one has the uid. Others have their names before theirs."""
    config = load_config([*EVENTS, "ipc:///a,team=ipc:///b"])
    own = f"uid-{os.geteuid()}"
    assert event_addresses(config, Tenants()) == {own: "ipc:///a", "team": "ipc:///b"}
    tenants = written(tmp_path, f"[tenants.mine]\nuids = [{os.geteuid()}]")
    access = access_of("--tenants-file", str(tenants))
    assert event_addresses(config, access.known.tenants) == {"mine": "ipc:///a", "team": "ipc:///b"}


def test_encrypted_events_are_for_known_keys(tmp_path: Path, secret: Path) -> None:
    """A tenant over TCP needs one at least; the secret has to be a key that others cannot read."""
    own = f"uid-{os.geteuid()}"
    bound = (*EVENTS, "tcp://127.0.0.1:5557", "--kv-events-key-file", str(secret))
    with pytest.raises(ValueError, match=f"nobody could connect, since tenant {own} has no kv_ev"):
        access_of(*bound)
    public = "x" * 40
    tenants = written(tmp_path, f"[tenants.{own}]\nkv_events_keys = ['{public}']")
    access = access_of(*bound, "--tenants-file", str(tenants))
    assert access.event_keys == CurveKeys(SECRET.encode(), {own: (public.encode(),)})
    assert access_of().event_keys is None
    secret.write_text("no key", encoding="ascii")
    with pytest.raises(ValueError, match=r"is no secret key of CURVE: 40 characters"):
        access_of(*bound, "--tenants-file", str(tenants))
    secret.chmod(0o644)
    with pytest.raises(ValueError, match=r"kv_events_key_file .*others can read it"):
        access_of(*bound, "--tenants-file", str(tenants))
