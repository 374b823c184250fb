"""The primary that Sentinels know: it changes when they promote a replica."""

from kvstore.remote.errors import ClusterDown, EngineUnreachable, Reaction, RemoteError
from kvstore.remote.valkey.address import EngineAddress, SentinelAddress
from kvstore.remote.valkey.connector import ValkeyConnector
from kvstore.remote.valkey.resp import RespConnection, encoded


def connect_to_primary(connector: ValkeyConnector, address: SentinelAddress) -> RespConnection:
    """Returns a connection to the primary that the first Sentinel with an answer names.

    A server that calls itself a replica is refused: a Sentinel can be late, and a replica may
    have an older revision. Raises the last error if no Sentinel leads to a primary.
    """
    refused: RemoteError = EngineUnreachable("the address has no Sentinel")
    for sentinel in address.sentinels:
        try:
            primary = _primary(connector, sentinel, address.master)
            return _checked(connector.connect(primary), primary)
        except RemoteError as error:
            refused = error
    raise refused


def _primary(connector: ValkeyConnector, sentinel: EngineAddress, master: bytes) -> EngineAddress:
    connection = connector.connect_to_sentinel(sentinel)
    try:
        connection.send(encoded(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", master))
        reply = connection.reply(3)
    except RemoteError as error:
        if error.reaction is not Reaction.VALUE:
            raise
        raise EngineUnreachable(f"no answer of the Sentinel {sentinel}: {error}") from error
    finally:
        connection.close()
    match reply:
        case [bytes(host), bytes(port)] if port.isdigit():
            return EngineAddress(None, host.decode(), int(port), sentinel.is_tls)
        case None:
            raise ClusterDown(f"the Sentinel {sentinel} knows no {master.decode()}")
    raise EngineUnreachable(f"the Sentinel {sentinel} answered {reply!r}")


def _checked(connection: RespConnection, address: EngineAddress) -> RespConnection:
    try:
        connection.send(encoded(b"ROLE"))
        # A primary lists its replicas, each with three parts.
        reply = connection.reply(1000)
    except RemoteError:
        connection.close()
        raise
    match reply:
        case [b"master", *_]:
            return connection
    connection.close()
    raise ClusterDown(f"{address} is no primary: the Sentinels have not agreed on another one yet")
