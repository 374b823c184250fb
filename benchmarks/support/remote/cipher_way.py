"""The ceiling of sealed pages: bytes, the cipher and the checksum, and nothing else of the tier."""

from collections.abc import Sequence
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvstore.remote.secret.sealing import NONCE_BYTES, TAG_BYTES
from kvstore.storage.page_store import checksum_of
from support.remote.raw_client import AHEAD, RawConnection
from support.remote.ways import RawWay

# One key and nonce for all pages: this measures time, and these pages are secret to nobody.
KEY: Final = AESGCM(bytes(32))
NONCE: Final = bytes(NONCE_BYTES)


class CipherConnection(RawConnection):
    """One connection, for one thread, with memory for the values under way."""

    def __init__(self, place: tuple[str, int] | str) -> None:
        super().__init__(place)
        self._memory = memoryview(b"")

    def put(self, names: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        """Enciphers each page right before it is sent, while the server stores earlier ones."""
        due = 0
        for name, page in zip(names, pages, strict=True):
            # The kernel has copied a value that was sent, so its memory is free.
            value = self._value(page.nbytes + TAG_BYTES)
            checksum_of([page])
            KEY.encrypt_into(NONCE, page, None, value)
            if due == AHEAD:
                self._expect(b"+OK\r\n")
                due -= 1
            self._set(name, value)
            due += 1
        for _ in range(due):
            self._expect(b"+OK\r\n")

    def get(self, names: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        """Deciphers each value while the server sends later ones."""
        ahead = min(AHEAD, len(names))
        for name in names[:ahead]:
            self._get(name)
        for number, page in enumerate(pages):
            value = self._value(page.nbytes + TAG_BYTES)
            self._expect(b"$%d\r\n" % value.nbytes, value)
            if number + ahead < len(names):
                self._get(names[number + ahead])
            KEY.decrypt_into(NONCE, value, None, page)
            checksum_of([page])

    def _value(self, size: int) -> memoryview:
        if self._memory.nbytes < size:
            self._memory = memoryview(bytearray(size))
        return self._memory[:size]


class CipherWay(RawWay):
    """Bytes, cipher and checksum over some connections, with a thread each."""

    connection_type = CipherConnection
