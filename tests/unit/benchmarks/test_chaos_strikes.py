"""The order of an engine's faults, and a line that changes bytes."""

import random
import socket
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path
from threading import Thread

from chaos.remote.strikes import KINDS, kinds
from processes.proxy import GOOD, Line, SocketProxy


def test_each_fault_comes_once_before_any_comes_twice() -> None:
    """A short run has each kind, and a long one has as many of each as is documented."""
    order = kinds(random.Random(3))
    assert set(islice(order, len(KINDS))) == set(KINDS)
    total = sum(count for count, _ in KINDS.values())
    assert Counter(islice(order, 2 * total)) == {
        name: 2 * count for name, (count, _) in KINDS.items()
    }


def _serve_bytes(listener: socket.socket, content: bytes, answers: int) -> None:
    for _ in range(answers):
        connection, _ = listener.accept()
        with connection:
            connection.sendall(content)


def _received(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(10.0)
        line.connect(str(path))
        return b"".join(iter(lambda: line.recv(1 << 16), b""))


def test_a_line_flips_a_bit_of_every_so_many_bytes() -> None:
    """A bad line changes exactly the bytes that it should, over all pieces."""
    content = random.Random(1).randbytes(200_000)
    with tempfile.TemporaryDirectory(prefix="kvp-") as folder:
        target, path = Path(folder, "target"), Path(folder, "line")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(target))
        listener.listen()
        served = Thread(target=_serve_bytes, args=(listener, content, 2), daemon=True)
        served.start()
        proxy = SocketProxy(path, target)
        try:
            assert _received(path) == content
            proxy.line = Line(flip_every=7_001, piece_bytes=1_000)
            found = _received(path)
            proxy.line = GOOD
        finally:
            proxy.close()
            listener.close()
        served.join()
    changed = [at for at in range(len(content)) if found[at] != content[at]]
    assert changed == list(range(7_000, len(content), 7_001))
    assert all(found[at] ^ content[at] == 1 for at in changed)


def test_a_line_leads_to_another_place_from_then_on() -> None:
    """After a change of its target, new connections reach the other one."""
    with tempfile.TemporaryDirectory(prefix="kvp-") as folder:
        listeners = []
        for name in (b"first", b"second"):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f"{folder}/{name.decode()}")
            listener.listen()
            Thread(target=_serve_bytes, args=(listener, name, 1), daemon=True).start()
            listeners.append(listener)
        proxy = SocketProxy(Path(folder, "line"), Path(folder, "first"))
        try:
            assert _received(Path(folder, "line")) == b"first"
            proxy.retarget(Path(folder, "second"))
            assert _received(Path(folder, "line")) == b"second"
        finally:
            proxy.close()
            for listener in listeners:
                listener.close()
