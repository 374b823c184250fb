"""Engines by their addresses: the one place that knows every engine."""

import ssl
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

from kvstore.remote.engine import RemoteEngine
from kvstore.remote.process.helper_process import HelperCommand
from kvstore.remote.process.process_engine import MEMORY_BYTES, ProcessEngine
from kvstore.remote.valkey.address import (
    ClusterAddress,
    EngineAddress,
    SentinelAddress,
    UnusableEngineAddress,
    parse_address,
    read_credential,
    require_no_secret,
)
from kvstore.remote.valkey.cluster.cluster_engine import ClusterEngine
from kvstore.remote.valkey.valkey_engine import (
    CONNECT_SECONDS,
    CONNECTION_COUNT,
    USUAL_SECONDS,
    ValkeyEngine,
)

FORMS: Final = (
    "valkey://HOST:PORT, valkeys://HOST:PORT, valkey+unix:///PATH, "
    "valkey+cluster://HOST:PORT,HOST:PORT, valkey+sentinel://HOST:PORT,HOST:PORT/MASTER, "
    "file:///PATH, s3://BUCKET/PREFIX?endpoint=https://HOST:PORT&region=NAME"
)
# A file system answers at once, or it hangs: more helpers would bring nothing.
MOST_HELPERS: Final = 4


def open_engine(
    url: str,
    *,
    credential: Path | None = None,
    tls: ssl.SSLContext | None = None,
    connections: int = CONNECTION_COUNT,
    connect_seconds: float = CONNECT_SECONDS,
    replicas: int = 0,
    usual_seconds: float = USUAL_SECONDS,
) -> RemoteEngine:
    """Returns the engine at an address, in one of ``FORMS``. Waits for no server.

    ``credential`` is a private file with a line for the user and a line for the password.
    ``tls`` replaces the system's authorities for ``valkeys``. ``connections`` calls run at a time.
    A control value counts as written once ``replicas`` of Valkey have it. Short calls have
    ``usual_seconds``, by which a cluster tells a node that hangs.

    Raises :class:`~kvstore.remote.valkey.address.UnusableEngineAddress` for other addresses, also
    for those with a password, and ``CredentialRefused`` if the file for S3 cannot be read.
    """
    scheme = url.partition("://")[0]
    if scheme in ("file", "s3") and replicas:
        raise UnusableEngineAddress("only Valkey has replicas to wait for: set none")
    if scheme == "file":
        return _folder_engine(url, connections)
    if scheme == "s3":
        return _s3_engine(url, credential)
    address = _valkey_address(url)
    if isinstance(address, ClusterAddress):
        return ClusterEngine(
            address,
            credential=credential,
            tls=tls,
            connections=connections,
            connect_seconds=connect_seconds,
            replicas=replicas,
            usual_seconds=usual_seconds,
        )
    return ValkeyEngine(
        address,
        credential=credential,
        tls=tls,
        connections=connections,
        connect_seconds=connect_seconds,
        replicas=replicas,
    )


def is_in_clear(url: str) -> bool:
    """Returns whether values cross a network without TLS. Raises ``UnusableEngineAddress``."""
    scheme = url.partition("://")[0]
    if scheme == "file":
        return False
    if scheme == "s3":
        return _options(url).get("endpoint", "https:").startswith("http:")
    match _valkey_address(url):
        case EngineAddress(path=path, is_tls=is_tls):
            return path is None and not is_tls
        case SentinelAddress(sentinels=places) | ClusterAddress(seeds=places):
            return not places[0].is_tls


def _valkey_address(url: str) -> EngineAddress | SentinelAddress | ClusterAddress:
    if not url.startswith("valkey"):
        require_no_secret(url)
        raise UnusableEngineAddress(f"{url} is no address of an engine: write {FORMS}")
    return parse_address(url)


def _folder_engine(url: str, connections: int) -> RemoteEngine:
    """Returns an engine whose helpers hang in place of the store if the file system does."""
    require_no_secret(url)
    path = unquote(url.removeprefix("file://"))
    if not path.startswith("/"):
        raise UnusableEngineAddress(f"{url} has no absolute path: write file:///PATH")
    # Only folders and buckets need the package obstore.
    from kvstore.remote.objects.folder_engine import CAPABILITIES  # noqa: PLC0415  # as above

    command = HelperCommand(
        "kvstore.remote.objects.folder_engine:open_folder", {"folder": path}, MEMORY_BYTES
    )
    return ProcessEngine(command, CAPABILITIES, helpers=min(connections, MOST_HELPERS))


def _s3_engine(url: str, credential: Path | None) -> RemoteEngine:
    options = _options(url)
    bucket, _, prefix = url.removeprefix("s3://").partition("?")[0].partition("/")
    if not bucket or options.keys() - {"endpoint", "region"}:
        raise UnusableEngineAddress(f"an address of S3 has another form: write {FORMS}")
    # Only folders and buckets need the package obstore.
    from kvstore.remote.objects.s3_engine import Bucket, S3Engine  # noqa: PLC0415  # as above

    access_key = secret_key = None
    if credential is not None:
        user, password = read_credential(credential)
        access_key, secret_key = (user or b"").decode(), password.decode()
    return S3Engine(
        Bucket(
            bucket,
            prefix.rstrip("/"),
            options.get("endpoint"),
            options.get("region"),
            access_key,
            secret_key,
        )
    )


def _options(url: str) -> dict[str, str]:
    """Returns the options of an address of S3."""
    address, _, query = url.partition("?")
    require_no_secret(address)
    if "@" in query or "#" in query:
        raise UnusableEngineAddress("an address has no password: write that to a file")
    return dict(parse_qsl(query))
