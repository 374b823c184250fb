"""A server process that other users may call."""

import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import grpc
import pytest

from kvstore.v1 import store_pb2, store_pb2_grpc
from kvstore_client import ClientConfig
from kvstore_client.testing import running_store, wait_until
from pages.stamped_pages import SMALL_STORE, TOKENS, open_client, write_and_insert
from processes import other_user
from stores.rpc_world import Refused, refusal_of
from wire.attach_peer import AttachPeer
from wire.attached_worker import AttachedWorker

LIMIT = 30.0
# A third of it is how long a client may not know that its tenant changed.
TTL = 3.0
TOKEN = "kvs_token"  # noqa: S105 - for this test alone


def tenants_file(folder: Path, tenant: str) -> Path:
    """Writes a tenants file in which this process's uid and the token belong to one tenant."""
    path = folder / "tenants.toml"
    digest = sha256(TOKEN.encode()).hexdigest()
    text = f'[tenants.{tenant}]\nuids = [{os.getuid()}]\ntoken_sha256 = ["{digest}"]\nleases = 1'
    path.write_text(text)
    path.chmod(0o600)
    return path


def capabilities(port: int, token: str) -> store_pb2.GetCapabilitiesResponse:
    """Asks for capabilities over TCP without TLS. Raises Refused."""
    options = (("grpc.enable_http_proxy", 0),)
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        try:
            answer: store_pb2.GetCapabilitiesResponse = store_pb2_grpc.StoreServiceStub(
                channel
            ).GetCapabilities(
                store_pb2.GetCapabilitiesRequest(),
                timeout=LIMIT,
                metadata=(("authorization", f"Bearer {token}"),),
            )
        except grpc.RpcError as error:
            raise refusal_of(error) from error
        return answer


@pytest.mark.parametrize(
    ("said", "flags"),
    [
        (r"listen 127.0.0.1:0 needs TLS: give --tls-cert .* or say --insecure-tcp", []),
        (r"listen 127.0.0.1:0 needs --tenants-file", ["--insecure-tcp"]),
        (r"tenants_file /nowhere: ", ["--insecure-tcp", "--tenants-file", "/nowhere"]),
    ],
)
def test_an_open_address_is_refused_before_anything_is_there(
    tmp_path: Path, said: str, flags: list[str]
) -> None:
    """An open address without TLS or tenants ends the start with status 2 and one line."""
    folder = tmp_path / "run"
    command = ["--runtime-dir", str(folder), "--listen", "127.0.0.1:0", *flags]
    result = subprocess.run(
        [sys.executable, "-m", "kvstore", *command],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (result.returncode, result.stdout, folder.exists()) == (2, "", False)
    assert re.search(f"^kvstore-server: .*{said}", result.stderr, re.MULTILINE)
    assert len(result.stderr.splitlines()) == 1


def test_a_server_that_others_call(tmp_path: Path) -> None:
    """A server for a group, an open address and tenants has the right modes and identities."""
    group = os.getgid()
    path = tenants_file(tmp_path, "alice")
    flags = ("--socket-group", str(group), "--listen", "127.0.0.1:0", "--insecure-tcp")
    with running_store(*flags, "--tenants-file", str(path)) as store:
        folder = store.runtime_dir
        for each, mode in (
            (folder, 0o750),
            *((folder / f"{n}.sock", 0o660) for n in ("kvstore", "attach")),
        ):
            assert (stat.S_IMODE(each.stat().st_mode), each.stat().st_gid) == (mode, group)
        assert stat.S_IMODE((folder / "kvstore.flock").stat().st_mode) == 0o600
        found = re.search(r"insecure_tcp .*port=(\d+)", store.log)
        assert found is not None
        port = int(found[1])

        worker = AttachedWorker(folder)
        assert (worker.welcome.tenant, worker.welcome.admin) == ("alice", True)
        worker.grant()
        assert capabilities(port, TOKEN).store_epoch == worker.epoch
        with pytest.raises(Refused) as caught:
            capabilities(port, worker.welcome.credential)
        assert caught.value.reason == "CREDENTIAL_REQUIRED"
        other = AttachedWorker(folder)
        with pytest.raises(Refused) as caught:
            other.grant()
        assert (caught.value.reason, caught.value.metadata["maximum"]) == ("QUOTA_EXCEEDED", "1")

        path.write_text("[tenants.bob]\nadmin = true")
        os.kill(store.pid, signal.SIGHUP)
        assert wait_until(lambda: "tenants_read" in store.log)
        with pytest.raises(Refused) as caught:
            capabilities(port, TOKEN)
        assert caught.value.reason == "CREDENTIAL_REQUIRED"
        for each in (worker, other):
            each.close()


def greeted(folder: Path) -> str:
    """Returns the tenant for which the attach socket takes the caller."""
    peer = AttachPeer()
    try:
        peer.connect(folder / "attach.sock")
        return str(peer.hello().welcome.tenant)
    finally:
        peer.close()


@pytest.mark.skipif(not other_user.POSSIBLE, reason="only root can be several users")
def test_a_group_s_users_may_attach_and_be_one_tenant(tmp_path: Path) -> None:
    """The group's users attach as the tenant that names them, or as their own. Others cannot."""
    group, member, teammate, third, stranger = 20000, 20001, 20002, 20003, 20004
    path = tmp_path / "tenants.toml"
    path.write_text(f"[tenants.team]\nuids = [{member}, {teammate}]")
    with tempfile.TemporaryDirectory(prefix="kvstore-") as made:
        Path(made).chmod(0o755)
        folder = Path(made) / "run"
        flags = ("--socket-group", str(group), "--tenants-file", str(path))
        with running_store(*flags, runtime_dir=folder):
            tenants = [
                other_user.as_user(uid, group, lambda: greeted(folder))
                for uid in (member, teammate, third)
            ]
            assert tenants == ["team", "team", f"uid-{third}"]
            with pytest.raises(PermissionError):
                other_user.as_user(stranger, stranger, lambda: greeted(folder))


def test_a_worker_whose_uid_changes_tenants_goes_on_as_the_new_one(tmp_path: Path) -> None:
    """A worker whose uid moves to another tenant loses its lease and attaches as the new tenant."""
    path = tenants_file(tmp_path, "alice")
    with running_store(*SMALL_STORE, "--tenants-file", str(path)) as store:
        client, namespace = open_client(
            store.runtime_dir, ClientConfig(ttl=TTL, call_timeout=LIMIT)
        )
        write_and_insert(namespace, TOKENS)
        assert client.flush(LIMIT)
        tenants_file(tmp_path, "bob")
        os.kill(store.pid, signal.SIGHUP)
        assert wait_until(lambda: "tenant=bob" in store.log)
        assert namespace.wait_open(LIMIT)
        assert namespace.peek(TOKENS) == 0
        write_and_insert(namespace, TOKENS)
        spaces = client.admin.namespaces()
        assert [(each.tenant, each.cached_page_count) for each in spaces] == [
            ("alice", 4),
            ("bob", 4),
        ]
        client.close()
