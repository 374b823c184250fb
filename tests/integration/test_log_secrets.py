"""Logs have no token ids, texts, tokens, credentials, secrets or salts in any encoding."""

import json
import logging
import os
import secrets
import signal
import struct
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest
from google.protobuf.message import Message

from kvstore_client import Client, ClientConfig, NamespaceIdentity
from kvstore_client.testing import RunningStore, running_store, wait_until
from pages.stamped_pages import LAYOUT, write_and_insert
from stores.permission_stage import outcome
from stores.permission_table import CACHED, PERMISSIONS, SALT, TOKENS, Names
from wire.attached_worker import AttachedWorker
from wire.spellings import found

TOKEN = "kvs_a token that is recognised"  # noqa: S105 - for this test alone
TEXT = b"Tell nobody what this prompt says"
WRONG_SECRET = b"a secret that nobody has"
LIMIT = 30.0


def every_call(worker: AttachedWorker, namespace_id: bytes) -> list[str]:
    """Makes every call, right and spoilt, with each credential. Returns the outcomes."""
    names = Names(worker.lease_id, namespace_id, 101, 102, worker.epoch)
    ends: list[str] = []
    for authorization in (worker.welcome.credential, TOKEN, TOKEN + "x", ""):
        for secret in (worker.secret, WRONG_SECRET):
            metadata: list[tuple[str, str | bytes]] = [("kvstore-lease-secret-bin", secret)]
            if authorization:
                metadata.append(("authorization", f"Bearer {authorization}"))
            ends += [
                outcome(worker.channel, path, request, metadata, set()).reason
                for path, each in PERMISSIONS.items()
                for request in (each.build(names), spoilt(each.build(names)))
            ]
    return ends


def spoilt(message: Message) -> Message:
    """Returns a request with too many bytes or incomplete tokens."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_BYTES and not field.is_repeated:
            setattr(message, field.name, value + value * 20 + b"!")
        elif field.type == field.TYPE_MESSAGE and not field.is_repeated:
            spoilt(value)
    return message


def work(store: RunningStore) -> dict[str, bytes]:
    """Uses a store as a worker does. Returns the secrets that logs must not have."""
    tokens = [*TEXT, *struct.unpack("<8I", TOKENS)]
    with Client(
        store.runtime_dir, ClientConfig(display_name="worker", call_timeout=LIMIT)
    ) as client:
        namespace = client.namespace(NamespaceIdentity(b"a model", salt=SALT), LAYOUT)
        assert namespace.wait_open(LIMIT)
        write_and_insert(namespace, tokens)
        assert client.flush(LIMIT)
        assert namespace.peek(tokens)
        store.kill()
        assert wait_until(lambda: not client.connected)
    return {"text": TEXT, "text as token ids": struct.pack(f"<{len(TEXT)}I", *TEXT)}


def test_no_log_has_what_nobody_may_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither side's debug log has a secret after every call under every credential."""
    caplog.set_level(logging.DEBUG)
    tenants = tmp_path / "tenants.toml"
    digest = sha256(TOKEN.encode()).hexdigest()
    tenants.write_text(f'[tenants.alice]\ntoken_sha256 = ["{digest}"]')
    tenants.chmod(0o600)
    flags = ("--log-level", "debug", "--tier1-bytes", "1MiB", "--tenants-file", str(tenants))
    with running_store(*flags) as store:
        worker = AttachedWorker(store.runtime_dir)
        worker.grant()
        worker.bind()
        namespace_id = worker.open_namespace()
        worker.reserve(namespace_id, 1, 2)
        worker.insert(1, TOKENS)
        ends = every_call(worker, namespace_id)
        refused = AttachedWorker(store.runtime_dir)
        refused.peer.bind(worker.lease_id, WRONG_SECRET)
        tenants.write_text(f'[tenants.alice]\ntoken_sha256 = ["{TOKEN}"]')
        os.kill(store.pid, signal.SIGHUP)
        assert wait_until(lambda: "tenants_not_read" in store.log)
        unread = {
            "credential": worker.welcome.credential.encode(),
            "lease secret": worker.secret,
            "wrong secret": WRONG_SECRET,
        }
        for each in (worker, refused):
            each.close()
        unread |= work(store)
        log = store.log.encode()
    unread |= {
        "token ids": CACHED,
        "salt": SALT,
        "token": TOKEN.encode(),
        "wrong token": (TOKEN + "x").encode(),
        "digest of a token": bytes.fromhex(digest),
    }
    wanted = {
        "OK",
        "CREDENTIAL_REQUIRED",
        "LEASE_NOT_FOUND",
        "NAMESPACE_NOT_FOUND",
        "INVALID_FIELD",
    }
    assert wanted <= set(ends)
    assert log.count(b"request_handled") > len(ends) // 2
    assert found(log, unread) == []
    records = "\n".join(f"{each.getMessage()} {each.__dict__}" for each in caplog.records)
    assert "session_ended" in records
    assert found(records.encode(), unread) == []


@pytest.mark.parametrize(
    "line",
    [
        b"a salt that is recognised",
        SALT.hex().encode(),
        b"x" + b64encode(b"y" + SALT),
        repr({"salt": SALT}).encode(),
        json.dumps(list(SALT)).encode(),
        b"salt=" + SALT[:14],
    ],
)
def test_a_secret_in_a_log_is_found(line: bytes) -> None:
    """The check above finds a secret in any encoding."""
    assert found(b"2026-01-01 event " + line, {"salt": SALT}) == ["salt"]
    assert found(b"2026-01-01 event " + secrets.token_hex(64).encode(), {"salt": SALT}) == []


def test_token_ids_in_a_log_are_found() -> None:
    """Token ids in a log are also found as numbers."""
    ids = list(struct.unpack("<4I", CACHED))
    for line in (str(ids), json.dumps({"tokens": ids}), " ".join(map(str, ids))):
        assert found(line.encode(), {"token ids": CACHED}) == ["token ids"]
