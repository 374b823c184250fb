"""kvstore-ctl, and calls as by grpcurl, over TCP with TLS on a real store."""

import json
import re
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvstore_client import (
    ClientConfig,
    Namespace,
    RemoteStore,
    connect_admin,
    connect_remote_admin,
    errors,
)
from kvstore_client.testing import running_store, wait_until
from kvstore_ctl.app import app
from pages.stamped_pages import LIMIT, SMALL_STORE, TOKENS, open_client, write_and_insert
from wire.certificates import Authority

TOKEN = "kvs_operator"  # noqa: S105 - for this test alone


@dataclass
class Remote:
    """A store, and the files of a remote operator."""

    address: str
    runtime_dir: Path
    folder: Path
    namespace: Namespace
    log: Callable[[], str]

    def run(self, *arguments: str, trusted: str = "authority.crt") -> Result:
        """Runs a command as the operator, with the token and a certificate without a name."""
        options = ["--address", self.address, "--token-file", str(self.folder / "token")]
        options += ["--tls-ca", str(self.folder / trusted)]
        options += ["--tls-cert", str(self.folder / "host.crt")]
        options += ["--tls-key", str(self.folder / "host.key")]
        return CliRunner().invoke(app, [*options, *arguments])


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    """Provides a store with TLS and client certificates, which has cached something."""
    folder = tmp_path_factory.mktemp("remote")
    authority = Authority(folder)
    Authority(folder, "stranger")
    files = authority.issue("server", hosts=["127.0.0.1"])
    authority.issue("host")
    authority.issue("reader", uris=["spiffe://example/reader"])
    (folder / "token").write_text(f"{TOKEN}\n")
    tenants = folder / "tenants.toml"
    digest = sha256(TOKEN.encode()).hexdigest()
    tenants.write_text(
        f'[tenants.operator]\nadmin = true\ntoken_sha256 = ["{digest}"]\n'
        '[tenants.reader]\ncertificate_names = ["spiffe://example/reader"]\n'
    )
    tenants.chmod(0o600)
    flags = ["--listen", "127.0.0.1:0", "--tenants-file", str(tenants)]
    flags += ["--tls-cert", str(files.cert), "--tls-key", str(files.key)]
    flags += ["--tls-client-ca", str(authority.cert), "--log-format", "json"]
    with running_store(*SMALL_STORE, *flags) as store:
        wait_until(lambda: '"port": ' in store.log)
        found = re.search(r'"port": (\d+)', store.log)
        assert found is not None
        config = ClientConfig(display_name="worker-a", call_timeout=LIMIT)
        client, namespace = open_client(store.runtime_dir, config)
        write_and_insert(namespace, TOKENS)
        assert client.flush(LIMIT)
        yield Remote(
            f"127.0.0.1:{found[1]}", store.runtime_dir, folder, namespace, lambda: store.log
        )
        client.close()


def test_a_remote_admin_looks(remote: Remote) -> None:
    """A remote admin sees statistics, leases, the tree and health as on the host."""
    assert "worker-a" in remote.run("stats").stdout
    (lease,) = json.loads(remote.run("leases", "--json").stdout)
    assert lease["display_name"] == "worker-a"
    assert "pages 0-" in remote.run("tree").stdout
    health = remote.run("health")
    assert (health.exit_code, "SERVING" in health.stdout) == (0, True)


def test_a_remote_admin_asks_whether_it_is_well(remote: Remote) -> None:
    """A remote doctor checks the store but not its host. A bench is refused from another host."""
    diagnosis = remote.run("doctor", "--json")
    assert diagnosis.exit_code == 0, diagnosis.output
    found = {each["check"]: each["outcome"] for each in json.loads(diagnosis.stdout)["checks"]}
    assert (found["answers"], found["versions"], found["host"]) == ("ok", "ok", "skipped")
    assert "socket" not in found
    assert "worker-a" in remote.run("top", "--once", "--interval", "0.1").stdout
    assert json.loads(remote.run("savings", "--json").stdout)[0]["of"] == "all namespaces"
    assert "tiny" in remote.run("identity").stdout
    refused = remote.run("bench")
    assert (refused.exit_code, "only on this host's store" in refused.stderr) == (2, True)


def test_a_remote_admin_peeks_pins_and_evicts(remote: Remote, tmp_path: Path) -> None:
    """A remote admin can peek, pin, unpin and evict."""
    tokens = tmp_path / "tokens"
    tokens.write_text(json.dumps([*TOKENS, 1]))
    peeked = json.loads(remote.run("peek", "--tokens", str(tokens), "--json").stdout)
    cached = peeked["matched_token_count"] + peeked["source_token_count"]
    assert cached > len(TOKENS) // 2
    said = remote.run("peek", "--tokens", str(tokens)).stdout
    assert said.startswith(f"{cached} of {len(TOKENS) + 1} tokens would be reused in ")
    assert "are pinned" in remote.run("pin", "system", "--tokens", str(tokens)).stdout
    assert "system" in remote.run("pins").stdout
    assert remote.run("unpin", "system").exit_code == 0
    removed = json.loads(remote.run("evict", "--all", "--yes", "--json").stdout)
    assert removed["evicted_page_count"] + removed["detached_page_count"] > 0
    write_and_insert(remote.namespace, TOKENS)


def test_another_tenant_is_shown_nothing(remote: Remote) -> None:
    """A certificate alone admits a tenant, who sees only its own things: none."""
    settings = RemoteStore(
        address=remote.address,
        tls_ca=remote.folder / "authority.crt",
        tls_cert=remote.folder / "reader.crt",
        tls_key=remote.folder / "reader.key",
    )
    with connect_admin(remote.runtime_dir) as here:
        (namespace,) = here.namespaces()
    with connect_remote_admin(settings) as admin:
        assert (admin.namespaces(), admin.leases(), list(admin.stats().arenas)) == ([], [], [])
        with pytest.raises(errors.NamespaceNotFound):
            admin.peek_prefix(namespace.namespace_id, TOKENS)


@pytest.mark.parametrize(
    ("status", "said", "token", "trusted"),
    [
        (1, "CREDENTIAL_REQUIRED", "kvs_nobody", "authority.crt"),
        (3, "UNAVAILABLE", TOKEN, "stranger.crt"),
        (2, "No such file", TOKEN, "nowhere.crt"),
    ],
)
def test_who_is_not_let_in_is_told_why(
    remote: Remote, status: int, said: str, token: str, trusted: str
) -> None:
    """An unknown token, an untrusted store and a missing file are each reported."""
    (remote.folder / "token").write_text(token)
    result = remote.run("stats", trusted=trusted)
    (remote.folder / "token").write_text(TOKEN)
    assert (result.exit_code, result.stdout) == (status, "")
    assert said in result.stderr
    assert token not in result.stderr


def test_a_folder_that_was_typed_wins_over_an_address_of_the_environment(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder on the command line has priority over an address in the environment."""
    monkeypatch.setenv("KVSTORE_ADDRESS", remote.address)
    runner, folder = CliRunner(), ["--runtime-dir", str(remote.runtime_dir)]
    assert runner.invoke(app, ["stats", *folder]).exit_code == 0
    for alone in (["--address", remote.address, "stats", *folder], ["stats"]):
        assert runner.invoke(app, alone).exit_code == 2


def test_options_of_an_address_want_an_address() -> None:
    """TLS options and a token without an address are refused."""
    result = CliRunner().invoke(app, ["--tls-ca", "ca.pem", "stats"])
    assert (result.exit_code, "--tls-ca is for --address" in result.stderr) == (2, True)


def test_a_new_token_is_printed_once_with_its_line(tmp_path: Path) -> None:
    """A new token is printed once, or written to a private file, beside its digest's line."""
    made = CliRunner().invoke(app, ["token", "new"])
    token = made.stdout.removesuffix("\n")
    assert re.fullmatch(r"kvs_[\w-]{43}", token)
    digest = sha256(token.encode()).hexdigest()
    assert f'token_sha256 = ["{digest}"]' in made.stderr
    out = tmp_path / "token"
    kept = CliRunner().invoke(app, ["token", "new", "--out", str(out), "--json"])
    assert set(json.loads(kept.stdout)) == {"token_sha256"}
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    written = sha256(out.read_text().strip().encode()).hexdigest()
    assert json.loads(kept.stdout)["token_sha256"] == written != digest
    again = CliRunner().invoke(app, ["token", "new", "--out", str(out)])
    assert (again.exit_code, "File exists" in again.stderr) == (2, True)


def test_nobody_writes_into_the_log(remote: Remote) -> None:
    """The text of a stranger's TLS handshake does not get into the log."""
    context = ssl.create_default_context(cafile=str(remote.folder / "authority.crt"))
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    host, _, port = remote.address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as line:
        said = context.wrap_socket(line, server_hostname="unheard.example")
        said.close()
    assert remote.run("health").exit_code == 0
    assert [json.loads(each) for each in remote.log().splitlines()]
    assert "unheard" not in remote.log()


def test_a_credential_is_of_this_host(remote: Remote) -> None:
    """No credential is printed for a remote address."""
    result = remote.run("token")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "this host" in result.stderr
