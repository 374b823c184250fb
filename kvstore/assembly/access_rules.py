"""Access to the server: the credentials and listeners of its settings, read before it binds."""

import grp
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from kvstore.assembly.remote_setup import RemoteAccess, read_remote
from kvstore.config.settings import Config
from kvstore.core import QuotaTable
from kvstore.kv_events.curve_keys import CurveKeys
from kvstore.operator_files import UntrustedFile, read_private
from kvstore.rpc.attach.table import SocketAccess
from kvstore.rpc.tls import Tls, TlsFiles
from kvstore.service.tenancy.credentials import Credentials
from kvstore.service.tenancy.tenant_lookup import Tenants
from kvstore.service.tenancy.tenants_file import (
    Z85_KEY,
    TenantsFile,
    WrongTenants,
    parse_tenants,
)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@dataclass(frozen=True)
class Access:
    """The rules of access: who may connect, how, and as which tenant; and to the remote tier.

    ``event_keys`` are those of KV events over TCP, if they are encrypted.
    """

    sockets: SocketAccess
    tenants_path: Path | None
    known: TenantsFile
    tls: Tls | None
    remote: RemoteAccess | None = None
    event_keys: CurveKeys | None = None

    def reload(self, credentials: Credentials, rates: Callable[[QuotaTable], None]) -> bool:
        """Reads the tenants file again. Returns False, and changes nothing, if it is unusable.

        New credentials apply from now on, and so do request rates, which go to ``rates``. Other
        quotas stay, since a store keeps what it admitted.
        """
        if self.tenants_path is None:
            return True
        try:
            known = _read_tenants(self.tenants_path)
        except ValueError as error:
            log.warning("tenants_not_read", why=str(error))
            return False
        credentials.tenants = known.tenants
        rates(known.quotas)
        quotas_changed = self.known.quotas.differs_beyond_rates(known.quotas)
        log.info("tenants_read", quotas_changed=quotas_changed)
        return True


def read_access(settings: Config) -> Access:
    """Returns the access of the settings; raises ValueError that names the setting."""
    path = settings.tenants_file
    known = TenantsFile.empty() if path is None else _read_tenants(path)
    if settings.listen is not None:
        _require_callers(settings, known.tenants)
    remote = read_remote(settings)
    sockets, tls = _sockets(settings.socket_group), _tls(settings)
    return Access(sockets, path, known, tls, remote, _event_keys(settings, known))


def event_addresses(settings: Config, tenants: Tenants) -> dict[str, str]:
    """Returns the addresses of KV events that the settings give to tenants, by tenant."""
    own = tenants.of_uid(os.geteuid())
    own_name = f"uid-{os.geteuid()}" if own is None else own.name
    return {tenant or own_name: each for tenant, each in settings.kv_events_addresses.items()}


def _event_keys(settings: Config, known: TenantsFile) -> CurveKeys | None:
    """Returns the keys of KV events over TCP; raises ValueError if nobody could connect."""
    path = settings.kv_events_key_file
    if path is None:
        return None
    try:
        secret = read_private(path, secret=True).strip().decode(errors="replace")
    except UntrustedFile as error:
        raise ValueError(f"kv_events_key_file {error}") from error
    if not Z85_KEY.fullmatch(secret):
        raise ValueError(
            f"kv_events_key_file {path} is no secret key of CURVE: 40 characters in Z85, such as "
            "the second that `python -c 'import zmq; print(*zmq.curve_keypair())'` prints"
        )
    for tenant, address in event_addresses(settings, known.tenants).items():
        if address.startswith("tcp://") and not known.event_keys.get(tenant):
            raise ValueError(
                f"kv_events_bind {address}: nobody could connect, since tenant {tenant} has no "
                f"kv_events_keys in {settings.tenants_file or 'a tenants_file'}"
            )
    return CurveKeys(secret.encode(), known.event_keys)


def _read_tenants(path: Path) -> TenantsFile:
    try:
        known = parse_tenants(read_private(path, secret=False))
        if known.tenants.has_tokens or known.remote_keys:
            read_private(path, secret=True)
    except UntrustedFile as error:
        raise ValueError(f"tenants_file {error}") from error
    except WrongTenants as error:
        raise ValueError(f"tenants_file {path}: {error}") from error
    return known


def _require_callers(settings: Config, tenants: Tenants) -> None:
    by_certificate = settings.tls_client_ca is not None and tenants.has_certificate_names
    if not (tenants.has_tokens or by_certificate):
        wanted = "a token" if settings.tls_client_ca is None else "a token or a certificate's name"
        raise ValueError(
            f"listen {settings.listen}: nobody could call, since no tenant of "
            f"{settings.tenants_file} has {wanted}: `kvstore-ctl token new` makes one"
        )


def _sockets(group: str | None) -> SocketAccess:
    if group is None:
        return SocketAccess()
    if group.isdecimal():
        return SocketAccess(int(group))
    try:
        return SocketAccess(grp.getgrnam(group).gr_gid)
    except KeyError:
        raise ValueError(f"socket_group: there is no group {group!r}") from None


def _tls(settings: Config) -> Tls | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    files = TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    return Tls(files, partial(read_private, secret=True))
