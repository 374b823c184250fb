"""The keys of CURVE, in Z85 (RFC 32 of ZeroMQ): 40 characters for 32 bytes."""

from collections.abc import Collection, Mapping
from typing import NamedTuple


class CurveKeys(NamedTuple):
    """The server's secret key, and the public keys of each tenant's consumers."""

    secret: bytes
    consumers: Mapping[str, Collection[bytes]]
