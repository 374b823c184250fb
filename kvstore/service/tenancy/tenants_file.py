"""The tenants file: TOML, checked to its last key before any of it is used."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from kvstore.core import Quotas, QuotaTable
from kvstore.service.tenancy.tenant_lookup import Tenant, Tenants, canonical_name

# A tenant's name appears in logs and statistics.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# The name of a uid that no tenant names.
UID_TENANT = re.compile(r"uid-(0|[1-9]\d*)")
# A key of CURVE in Z85 (RFC 32 of ZeroMQ).
Z85_KEY = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
HEX_DIGITS = 64
# The last uid means no uid at all.
MOST_UID = 2**32 - 2
MAX_CERTIFICATE_NAME = 2048


class WrongTenants(ValueError):
    """The tenants file is invalid; the message names the place."""


@dataclass(frozen=True)
class TenantsFile:
    """The content of a tenants file: the tenants, their quotas, and their keys by name.

    ``event_keys`` are the public keys of those who may read a tenant's KV events.
    """

    tenants: Tenants
    quotas: QuotaTable
    remote_keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    event_keys: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)

    @classmethod
    def empty(cls) -> Self:
        """Returns the content of a missing file: no tenants, and equal quotas for all."""
        return cls(Tenants(), QuotaTable())


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError("a tenant's name has 1 to 64 letters, digits, dots, dashes, underlines")
    return value


def _digest(value: str) -> str:
    # A misplaced value could be the token itself, so the error does not repeat it.
    if not re.fullmatch(rf"[0-9a-fA-F]{{{HEX_DIGITS}}}", value):
        raise ValueError(
            "has to be a SHA-256 digest, 64 hexadecimal digits, as `kvstore-ctl token new` prints"
        )
    return value


def _remote_key(value: str) -> str:
    if not re.fullmatch(rf"[0-9a-fA-F]{{{HEX_DIGITS}}}", value):
        raise ValueError(
            "has to be 32 random bytes as 64 hexadecimal digits, as `openssl rand -hex 32` prints"
        )
    return value


def _event_key(value: str) -> str:
    if not Z85_KEY.fullmatch(value):
        raise ValueError("has to be a public key of CURVE, 40 characters in Z85")
    return value


def _certificate_name(value: str) -> str:
    if not value.isprintable() or not 0 < len(value) <= MAX_CERTIFICATE_NAME or " " in value:
        raise ValueError("has to be a URI, a DNS name or a common name, as a certificate has it")
    return canonical_name(value)


class QuotaValues(BaseModel):
    """The quotas of one table of the file. An absent quota is the default's."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    tier1_bytes: ByteSize | None = None
    share_bytes: ByteSize | None = None
    leases: int | None = None
    pins: int | None = None
    named_pins: int | None = None
    requests_per_second: float | None = None

    def over(self, default: Quotas) -> Quotas:
        """Returns ``default`` with this table's quotas in place of its own."""
        names = (each.name for each in fields(Quotas) if each.name in QuotaValues.model_fields)
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return Quotas(**{each.name: getattr(default, each.name) for each in fields(Quotas)} | given)

    @model_validator(mode="after")
    def _require_quotas(self) -> Self:
        self.over(Quotas())
        return self


class TenantValues(QuotaValues):
    """One tenant's table."""

    uids: list[Annotated[int, Field(ge=0, le=MOST_UID)]] = []
    token_sha256: list[Annotated[str, AfterValidator(_digest)]] = []
    certificate_names: list[Annotated[str, AfterValidator(_certificate_name)]] = []
    admin: bool = False
    remote_key: Annotated[str, AfterValidator(_remote_key)] | None = None
    kv_events_keys: list[Annotated[str, AfterValidator(_event_key)]] = []


class FileValues(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    default: QuotaValues = QuotaValues()
    tenants: dict[Annotated[str, AfterValidator(_name)], TenantValues] = {}

    @model_validator(mode="after")
    def _require_true_names(self) -> Self:
        for name, values in self.tenants.items():
            found = UID_TENANT.fullmatch(name)
            if name.startswith("uid-") and found is None:
                raise ValueError(f"tenants.{name}: a name like uid-1000 is that uid's")
            if found is not None and values.uids not in ([], [int(found[1])]):
                raise ValueError(f"tenants.{name}.uids: this is the tenant of uid {found[1]} alone")
        return self


def parse_tenants(content: bytes) -> TenantsFile:
    """Returns the parsed content of a tenants file.

    Raises :class:`WrongTenants`, which names the line or the field, and repeats no value that could
    be a secret.
    """
    try:
        values = FileValues.model_validate(tomllib.loads(content.decode()))
        tenants = Tenants(_tenant(name, each) for name, each in values.tenants.items())
    except ValidationError as error:
        raise WrongTenants("; ".join(_problems(error))) from None
    except (RecursionError, ValueError) as error:
        raise WrongTenants(str(error)) from None
    default = values.default.over(Quotas())
    by_tenant = {name: each.over(default) for name, each in values.tenants.items()}
    keys = {
        name: bytes.fromhex(each.remote_key)
        for name, each in values.tenants.items()
        if each.remote_key is not None
    }
    event_keys = {
        name: tuple(key.encode() for key in each.kv_events_keys)
        for name, each in values.tenants.items()
    }
    return TenantsFile(tenants, QuotaTable(default, by_tenant), keys, event_keys)


def _tenant(name: str, values: TenantValues) -> Tenant:
    uid = UID_TENANT.fullmatch(name)
    return Tenant(
        name,
        frozenset(values.uids if uid is None else [int(uid[1])]),
        frozenset(bytes.fromhex(each) for each in values.token_sha256),
        frozenset(values.certificate_names),
        values.admin,
    )


def _problems(error: ValidationError) -> list[str]:
    return [
        f"{'.'.join(str(part) for part in each['loc'] if part != '[key]')}: "
        f"{_why(each['type'], each['msg'])}".removeprefix(": ")
        for each in error.errors(include_input=False, include_url=False)
    ]


def _why(kind: str, message: str) -> str:
    return "no such key" if kind == "extra_forbidden" else message.removeprefix("Value error, ")
