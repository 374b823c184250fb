"""What attaching came to."""

from typing import NamedTuple

from kvstore.v1 import attach_pb2, store_pb2
from kvstore_client.calls.attach import AttachConnection
from kvstore_client.calls.channel import StoreCalls
from kvstore_client.calls.lease_calls import LeaseCalls
from kvstore_client.session.joined_lease import SharedLease
from kvstore_client.session.lease_keeper import LeaseTerm


class Bound(NamedTuple):
    """A lease with this process bound to it.

    ``shared`` is what joins another process; ``joined``: this one was, by the owner.
    """

    connection: AttachConnection
    calls: StoreCalls
    lease: LeaseCalls
    term: LeaseTerm
    welcome: attach_pb2.Welcome
    limits: store_pb2.Limits
    shared: SharedLease
    joined: bool = False
