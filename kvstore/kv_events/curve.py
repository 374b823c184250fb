"""CURVE for KV events over TCP: they are encrypted, and only known consumers connect.

ZeroMQ asks about each connection by ZAP (RFC 27 of ZeroMQ), on a socket within the process.
"""

import zmq
from zmq.utils import z85

from kvstore.kv_events.curve_keys import CurveKeys

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
# Frames of a question: version, number, domain, address, identity, mechanism, and the key.
QUESTION_FRAMES = 7
ALLOWED, DENIED = (b"200", b"OK"), (b"400", b"the key is not of this tenant")
# Questions that are answered before it is a tenant's turn.
QUESTIONS_AT_ONCE = 16


class CurveAccess:
    """Answers who may connect to a tenant's sockets. For the publisher's thread."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", keys: CurveKeys) -> None:
        self._keys = keys
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(ZAP_ADDRESS)

    @property
    def server_name(self) -> str:
        """The server's public key, by which consumers know it."""
        return zmq.curve_public(self._keys.secret).decode()

    def protect(self, socket: "zmq.Socket[bytes]", tenant: str) -> None:
        """Makes a socket that is not bound yet a tenant's: only its consumers connect."""
        socket.curve_server = True
        socket.curve_secretkey = self._keys.secret
        socket.zap_domain = tenant.encode()

    def answer(self) -> None:
        """Answers the questions that wait."""
        for _ in range(QUESTIONS_AT_ONCE):
            if not self._socket.poll(0):
                return
            frames = self._socket.recv_multipart()
            number = frames[1] if len(frames) > 1 else b""
            verdict = ALLOWED if self._is_known(frames) else DENIED
            self._socket.send_multipart((ZAP_VERSION, number, *verdict, b"", b""))

    def close(self) -> None:
        """Closes the socket of the questions."""
        self._socket.close()

    def _is_known(self, frames: list[bytes]) -> bool:
        if len(frames) != QUESTION_FRAMES or frames[5] != b"CURVE":
            return False
        known = self._keys.consumers.get(frames[2].decode(errors="replace"), ())
        return z85.encode(frames[6]) in known
