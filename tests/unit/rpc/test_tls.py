"""TCP addresses with certificates, tokens, and both, on real connections."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from structlog.testing import capture_logs

from kvstore.core.values.limits import Limits
from kvstore.logs import merge_call
from kvstore.rpc.server import UnusableAddress, listen, server_options
from kvstore.rpc.tls import Tls, TlsFiles, UnusableTls
from kvstore.service.tenancy.tenant_lookup import Tenant, Tenants
from kvstore.v1 import (
    lease_pb2,
    lease_pb2_grpc,
    prefix_cache_pb2,
    prefix_cache_pb2_grpc,
    store_pb2_grpc,
)
from kvstore.v1 import store_pb2 as pb
from stores.rpc_world import Refused, Server, refusal_of
from wire.certificates import Authority, Certificate
from wire.own_logs import own_logs

ALICE_TOKEN = "kvs_alice"  # noqa: S105 - for this test alone
BOB_TOKEN = "kvs_bob"  # noqa: S105 - as above
TENANTS = Tenants(
    [
        Tenant(
            "alice",
            token_digests=frozenset({sha256(ALICE_TOKEN.encode()).digest()}),
            certificate_names=frozenset({"spiffe://example/alice"}),
        ),
        Tenant("bob", token_digests=frozenset({sha256(BOB_TOKEN.encode()).digest()})),
    ]
)


class Reach:
    """A server's TCP addresses, and calls to them."""

    def __init__(self, folder: Path) -> None:
        self.server: Server
        self.ports: dict[str, int] = {}
        self.authority = Authority(folder)
        self.stranger = Authority(folder, "stranger")
        self.files = self.authority.issue("server", hosts=["localhost", "127.0.0.1"])
        self.tls = Tls(TlsFiles(self.files.cert, self.files.key), Path.read_bytes)

    def bind(self, server: grpc.Server) -> None:
        """Listens without TLS, with TLS, and with TLS that asks clients for certificates."""
        files = TlsFiles(self.files.cert, self.files.key, self.authority.cert)
        mutual = Tls(files, Path.read_bytes)
        for name, tls in (("insecure", None), ("tls", self.tls), ("mutual", mutual)):
            self.ports[name] = listen(server, "localhost:0", tls)

    def alice(self) -> Certificate:
        """Returns a certificate with alice's URI and bob's common name."""
        return self.authority.issue("bob", uris=["spiffe://example/alice"])

    def tenant(self, which: str, *, token: str = "", certificate: Certificate | None = None) -> str:
        """Returns the tenant that a call counts for. Raises Refused or RpcError."""
        target = f"localhost:{self.ports[which]}"
        options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
        if which == "insecure":
            channel = grpc.insecure_channel(target, options=options)
        else:
            key, chain = (None, None) if certificate is None else certificate.pems
            trusted = grpc.ssl_channel_credentials(self.authority.cert.read_bytes(), key, chain)
            channel = grpc.secure_channel(target, trusted, options=options)
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        with channel, capture_logs(processors=[merge_call]) as lines:
            try:
                store_pb2_grpc.StoreServiceStub(channel).GetCapabilities(
                    pb.GetCapabilitiesRequest(), timeout=30, metadata=metadata
                )
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    raise
                raise refusal_of(error) from error
        (line,) = (each for each in lines if each["event"] == "request_handled")
        return str(line["tenant"])


@pytest.fixture
def reach(start_server: Callable[..., Server], tmp_path: Path) -> Reach:
    """Provides a server that listens at three TCP addresses."""
    reach = Reach(tmp_path)
    reach.server = start_server(tenants=TENANTS, bind=reach.bind)
    return reach


@pytest.mark.parametrize("which", ["insecure", "tls"])
def test_a_token_says_who_calls(reach: Reach, which: str) -> None:
    """A call over TCP needs a token of the tenants file, and nothing else."""
    assert reach.tenant(which, token=BOB_TOKEN) == "bob"
    for token in ("", "kvs_nobody", reach.server.credentials.issue(2)):
        with pytest.raises(Refused) as caught:
            reach.tenant(which, token=token)
        assert (caught.value.reason, caught.value.metadata) == ("CREDENTIAL_REQUIRED", {})


def test_a_certificate_says_who_calls(reach: Reach) -> None:
    """A certificate alone is enough, and its URI has precedence over its common name."""
    assert reach.tenant("mutual", certificate=reach.alice()) == "alice"
    assert reach.tenant("mutual", certificate=reach.alice(), token=ALICE_TOKEN) == "alice"


def test_a_certificate_of_nobody_s_needs_a_token(reach: Reach) -> None:
    """A certificate that names no tenant opens the connection, but the call still needs a token."""
    certificate = reach.authority.issue("alice", hosts=["host.example"])
    assert reach.tenant("mutual", certificate=certificate, token=BOB_TOKEN) == "bob"
    with pytest.raises(Refused) as caught:
        reach.tenant("mutual", certificate=certificate)
    assert caught.value.reason == "CREDENTIAL_REQUIRED"


@pytest.mark.parametrize(
    ("token", "metadata"),
    [(BOB_TOKEN, {"why": "the token is not of the certificate's tenant"}), ("kvs_nobody", {})],
)
def test_a_certificate_and_a_token_have_to_agree(
    reach: Reach, token: str, metadata: dict[str, str]
) -> None:
    """A token that is unknown or of another tenant than the certificate is refused."""
    with pytest.raises(Refused) as caught:
        reach.tenant("mutual", certificate=reach.alice(), token=token)
    assert (caught.value.reason, caught.value.metadata) == ("CREDENTIAL_REQUIRED", metadata)


def test_without_a_certificate_that_is_signed_nothing_is_heard(reach: Reach) -> None:
    """A connection without a certificate of the trusted authority ends, whatever the token."""
    forged = reach.stranger.issue("alice", uris=["spiffe://example/alice"])
    for certificate in (None, forged):
        with pytest.raises(grpc.RpcError) as caught:
            reach.tenant("mutual", certificate=certificate, token=ALICE_TOKEN)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_in_clear_nothing_is_heard_at_a_tls_address(reach: Reach) -> None:
    """A client without TLS gets no answer at a TLS address."""
    reach.ports["insecure"] = reach.ports["tls"]
    with pytest.raises(grpc.RpcError) as caught:
        reach.tenant("insecure", token=BOB_TOKEN)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_renewed_certificate_is_used_without_a_restart(reach: Reach) -> None:
    """A new connection gets the renewed certificate. Unusable files are logged and not used."""
    before = reach.authority
    reach.authority = reach.stranger
    with pytest.raises(grpc.RpcError):
        reach.tenant("tls", token=BOB_TOKEN)
    renewed = reach.stranger.issue("renewed", hosts=["localhost"])
    renewed.key.replace(reach.files.key)
    with own_logs() as lines:
        assert reach.tls.renewed() is None
    assert [each["event"] for each in lines] == ["tls_not_renewed"]
    reach.authority = before
    assert reach.tenant("tls", token=BOB_TOKEN) == "bob"
    renewed.cert.replace(reach.files.cert)
    reach.authority = reach.stranger
    assert reach.tenant("tls", token=BOB_TOKEN) == "bob"


@pytest.mark.parametrize(
    ("said", "spoil"),
    [
        ("No such file", lambda files: files.cert.unlink()),
        ("No such file", lambda files: files.key.unlink()),
        ("tls_cert .*crt and tls_key", lambda files: files.cert.write_text("no PEM")),
        ("tls_cert .*crt and tls_key", lambda files: files.key.write_text("no PEM")),
        ("has a passphrase", lambda files: files.key.write_bytes(_encrypted(files))),
        ("MISMATCH", lambda files: files.key.write_bytes(_other_key(files))),
        (
            "tls_client_ca .*: No such file",
            lambda files: (files.cert.parent / "authority.crt").unlink(),
        ),
        ("tls_client_ca", lambda files: (files.cert.parent / "authority.crt").write_text("x")),
    ],
)
def test_files_that_cannot_be_used_are_refused(
    tmp_path: Path, said: str, spoil: Callable[[Certificate], object]
) -> None:
    """Unusable certificate files are refused at the start, because each handshake would fail."""
    authority = Authority(tmp_path)
    files = authority.issue("server", hosts=["localhost"])
    spoil(files)
    with pytest.raises(UnusableTls, match=said):
        Tls(TlsFiles(files.cert, files.key, authority.cert), Path.read_bytes)


def _encrypted(files: Certificate) -> bytes:
    key = load_pem_private_key(files.key.read_bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))


def _other_key(files: Certificate) -> bytes:
    return Authority(files.cert.parent, "other").issue("x").key.read_bytes()


def test_an_address_that_is_taken_is_named(reach: Reach) -> None:
    """The error for an address that is in use names the address."""
    taken = f"localhost:{reach.ports['tls']}"
    with pytest.raises(UnusableAddress, match=taken):
        listen(grpc.server(ThreadPoolExecutor(1), options=server_options(Limits())), taken, None)


def test_a_remote_client_is_a_member_of_nothing(reach: Reach) -> None:
    """A remote client may have a lease, but cannot match, because its process is not attached."""
    metadata = (
        ("authorization", f"Bearer {ALICE_TOKEN}"),
        ("kvstore-lease-secret-bin", b"a secret of 16 bytes or more"),
    )
    options = (("grpc.enable_http_proxy", 0),)
    with grpc.insecure_channel(f"localhost:{reach.ports['insecure']}", options=options) as channel:
        lease_id = bytes(range(16))
        grant = lease_pb2.GrantLeaseRequest(lease_id=lease_id)
        stub = lease_pb2_grpc.LeaseServiceStub(channel)
        epoch = stub.GrantLease(grant, timeout=30, metadata=metadata).store_epoch
        caller = prefix_cache_pb2.Caller(lease_id=lease_id, store_epoch=epoch)
        match = prefix_cache_pb2.MatchPrefixRequest(
            caller=caller, namespace_id=bytes(16), sequence=prefix_cache_pb2.Sequence(), pin_id=1
        )
        with pytest.raises(grpc.RpcError) as caught:
            prefix_cache_pb2_grpc.PrefixCacheServiceStub(channel).MatchPrefix(
                match, timeout=30, metadata=metadata
            )
    assert refusal_of(caught.value).reason == "NOT_ATTACHED"
