"""The remote tier, by the settings: its secrets, its engine and its store.

The modules of ``kvstore.remote`` need packages of the extra `remote`. This module imports them
only for a server that has a remote tier.
"""

import ssl
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from kvstore.config.settings import Config
from kvstore.operator_files import UntrustedFile, read_private
from kvstore.remote.finding import EngineFinding
from kvstore.service.clock import Clock
from kvstore.service.page_io.remote_facts import RemoteFacts
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.storage.write_admission import FirstTouch

if TYPE_CHECKING:
    from kvstore.remote.engine import RemoteEngine

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

KEY_BYTES: Final = 32
MAKE_A_KEY: Final = "(umask 077; head -c 32 /dev/urandom > FILE) makes one"
# Packages of the extra, and those that only folders and S3 need.
PACKAGES: Final = ("cryptography", "numpy")
OBJECT_PACKAGES: Final = ("obstore",)
# The most bytes on their way to the engine, and as many on their way back.
MOST_QUEUED: Final = 256 << 20
# Seconds that an engine has to tell its settings.
FINDING_SECONDS: Final = 5.0


@dataclass(frozen=True)
class RemoteAccess:
    """The secrets of the remote tier, and what its engine is reached with."""

    secret: bytes = field(repr=False)
    tls: ssl.SSLContext | None = None


def read_remote(config: Config) -> RemoteAccess | None:
    """Returns the access to the remote tier, or None without one.

    Raises ValueError that names the setting, and the way out. Connects to nothing.
    """
    if config.remote_url is None:
        return None
    _require_packages(config.remote_url)
    from kvstore.remote.secret.remote_keys import producer_secret  # noqa: PLC0415 - of the extra

    secret = _read_key(config.remote_key_file)
    if config.remote_producer is not None:
        secret = producer_secret(secret, config.remote_producer)
    access = RemoteAccess(secret, _tls(config.remote_ca_file))
    _require_guard(config.remote_url, insecure=config.remote_insecure)
    if config.remote_credential_file is not None:
        _require_credential(config.remote_credential_file)
    # It waits for no server.
    _engine(config, access, connections=1).close()
    return access


def remote_tier(
    config: Config, access: RemoteAccess, number: int, clock: Clock, state_folder: Path
) -> SlowTier:
    """Returns the remote tier as page store ``number``. Does not wait for its engine."""
    from kvstore.remote.remote_settings import RemoteSettings  # noqa: PLC0415 - of the extra
    from kvstore.remote.remote_store import RemoteStore  # noqa: PLC0415 - of the extra

    policy = config.remote_write_in_force
    # Pages on their way to the engine hold their slots in tier 1, as those of a slab do. Together
    # they are a quarter of it.
    share = 4 if config.tier3_path is None else 8
    queue_bytes = min(config.tier1_bytes // share, MOST_QUEUED)
    settings = RemoteSettings(
        timeout_seconds=config.remote_timeout,
        ttl_seconds=config.remote_ttl,
        queue_bytes=queue_bytes,
        reading_bytes=queue_bytes,
        writes=policy != "off",
    )
    if config.remote_insecure:
        log.warning("remote_insecure", url=config.remote_url)
    engine = _engine(config, access, connections=settings.connection_count)
    store = RemoteStore(
        engine,
        secret=access.secret,
        state_folder=state_folder,
        clock=clock,
        settings=settings,
    )
    return SlowTier(
        store,
        number=number,
        admission=FirstTouch() if policy == "through" else None,
        is_written=policy != "off",
        about=_about(config, access, engine),
    )


def _about(config: Config, access: RemoteAccess, engine: "RemoteEngine") -> RemoteFacts:
    from kvstore.remote.errors import RemoteError  # noqa: PLC0415 - of the extra
    from kvstore.remote.secret.sealing import PageSealer  # noqa: PLC0415 - of the extra

    def find() -> list[EngineFinding] | None:
        try:
            return engine.findings(monotonic() + FINDING_SECONDS)
        except RemoteError:
            return None

    return RemoteFacts(
        config.remote_url or "",
        key_id=PageSealer(access.secret).key_id,
        writes=config.remote_write_in_force or "",
        find=find,
    )


def _require_packages(url: str) -> None:
    wanted = PACKAGES + (OBJECT_PACKAGES if url.startswith(("file:", "s3:")) else ())
    missing = [name for name in wanted if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"remote_url needs {' and '.join(missing)}, which is not installed: the extra "
            "'remote' has it (pip install '.[remote]' from a checkout)"
        )


def _require_guard(url: str, *, insecure: bool) -> None:
    from kvstore.remote.engine_url import is_in_clear  # noqa: PLC0415 - of the extra

    try:
        in_clear = is_in_clear(url)
    except ValueError as error:
        raise ValueError(f"remote_url: {error}") from error
    if in_clear and not insecure:
        raise ValueError(
            f"remote_url {url} has no TLS: write valkeys:// or an https endpoint, or "
            "valkey+unix:// for an engine of this host; or say --remote-insecure, and whoever "
            "sees the network reads the engine's password and can delete pages"
        )


def _require_credential(path: Path) -> None:
    from kvstore.remote.errors import CredentialRefused  # noqa: PLC0415 - of the extra
    from kvstore.remote.valkey.address import read_credential  # noqa: PLC0415 - of the extra

    try:
        read_credential(path)
    except CredentialRefused as error:
        raise ValueError(f"remote_credential_file {error}") from error


def _read_key(path: Path | None) -> bytes:
    assert path is not None  # the settings require it
    try:
        content = read_private(path, secret=True)
    except UntrustedFile as error:
        raise ValueError(f"remote_key_file {error}; {MAKE_A_KEY}") from error
    if len(content) != KEY_BYTES:
        raise ValueError(
            f"remote_key_file {path} has {len(content)} bytes, and a key has {KEY_BYTES}: "
            f"{MAKE_A_KEY}; copy it to each host"
        )
    return content


def _tls(path: Path | None) -> ssl.SSLContext | None:
    """Returns a context that trusts the authorities of a file alone, or None without a file."""
    if path is None:
        return None
    try:
        return ssl.create_default_context(cadata=read_private(path, secret=False).decode())
    except UntrustedFile as error:
        raise ValueError(f"remote_ca_file {error}") from error
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"remote_ca_file {path} has no certificate in PEM: {error}") from error


def _engine(config: Config, access: RemoteAccess, *, connections: int) -> "RemoteEngine":
    """Returns the engine of the address. Raises ValueError for one that cannot be used."""
    from kvstore.remote.engine_url import open_engine  # noqa: PLC0415 - of the extra
    from kvstore.remote.errors import RemoteError  # noqa: PLC0415 - of the extra

    assert config.remote_url is not None  # the caller knows
    try:
        return open_engine(
            config.remote_url,
            credential=config.remote_credential_file,
            tls=access.tls,
            connections=connections,
            replicas=config.remote_replicas,
            usual_seconds=config.remote_timeout,
        )
    except (RemoteError, ValueError) as error:
        raise ValueError(f"remote_url: {error}") from error
