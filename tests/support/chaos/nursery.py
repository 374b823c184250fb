"""A process that starts workers by forking itself, and says what becomes of them.

It has loaded all that a worker needs and has neither threads nor connections, so a
worker is there in milliseconds. Its parent, which has both, tells it what to start
over a socket of whole packets, and is told of each stop and end, as waitid gives them.
"""

import gc
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from chaos.control import Control
from chaos.cuts import cut_connections
from chaos.load import SEVERAL_HOSTS, Load, Shape, load_of
from chaos.remote.remover import remove
from chaos.report import Report
from chaos.roles import corrupt, operate, walk
from chaos.worker import Orders, serve
from kvstore_client.fault_points import plan_faults
from kvstore_client.runtime_dir import RuntimeDir
from support.child import die_with_parent

ROLES: dict[str, Callable[[Load, Orders, Control, Report], None]] = {
    "corruptor": corrupt,
    "light": serve,
    "operator": operate,
    "remover": remove,
    "walker": walk,
}
PACKET = 1 << 16
# Of the workers of several hosts on one machine. A store that waits for a processor copies no pages
# to the engine.
NICENESS = 10


class Nursery:
    """Answers its parent until that is gone; then kills what it started. One thread uses it."""

    def __init__(
        self,
        parent: socket.socket,
        reports: socket.socket,
        load: Load,
        control: Control,
        niceness: int = 0,
    ) -> None:
        self._parent = parent
        self._niceness = niceness
        self._reports = reports
        self._load = load
        self._control = control
        self._pids: dict[int, int] = {}

    def serve(self) -> None:
        """Starts what is ordered and tells what happens."""
        woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._parent, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if woken in ready:
                    os.read(woken, PACKET)
                    self._tell_changes()
                if self._parent in ready and not self._obey():
                    break
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)

    def _obey(self) -> bool:
        try:
            packet = self._parent.recv(PACKET)
        except ConnectionResetError:  # gone, and never read what it was told last
            return False
        if not packet:
            return False
        order: dict[str, Any] = json.loads(packet)
        if "signal" in order:
            pid = self._pids.get(order["number"])
            if pid is not None:  # not reaped yet, so the pid is still its own
                os.kill(pid, order["signal"])
        else:
            orders, parent = Orders(**order), os.getpid()
            pid = os.fork()
            if pid == 0:
                self._become(orders, parent)
            self._pids[orders.number] = pid
        return True

    def _tell_changes(self) -> None:
        for number, pid in list(self._pids.items()):
            try:
                while change := os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOHANG):
                    self._tell(number, change)
                    if change.si_code not in (os.CLD_STOPPED, os.CLD_TRAPPED):
                        del self._pids[number]
                        break
            except ChildProcessError:
                self._pids.pop(number, None)

    def _tell(self, number: int, change: os.waitid_result) -> None:
        if change.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED):
            event: dict[str, Any] = {"number": number, "stopped": change.si_status}
        elif change.si_code == os.CLD_EXITED:
            event = {"number": number, "ended": change.si_status}
        else:
            event = {"number": number, "ended": -change.si_status}
        self._parent.send(json.dumps(event).encode())

    def _become(self, orders: Orders, parent: int) -> NoReturn:
        """Be a worker, in the child."""
        status = 1
        try:
            die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._parent.close()
            os.nice(self._niceness)
            paths = RuntimeDir(orders.runtime_dir)
            cuts = {"cut-attach": paths.attach_socket, "cut-grpc": paths.grpc_socket}
            report = Report(self._reports, orders.name)
            actions = {name: _cutting(path, orders, report) for name, path in cuts.items()}
            plan_faults(orders.faults, actions)
            ROLES[orders.role](self._load, orders, self._control, report)
            status = 0
        except BaseException:  # noqa: BLE001  # nothing is above: it is told by the exit status
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)


def _cutting(path: Path, orders: Orders, report: Report) -> Callable[[], None]:
    def cut() -> None:
        cut_connections(path)
        report.struck(orders.kind)

    return cut


def main() -> int:
    """Be a nursery.

    Arguments: the parent's id, two descriptors, the control's file, a trace or "", seed, count,
    and the numbers of a shape.
    """
    die_with_parent(int(sys.argv[1]))
    parent, reports = (socket.socket(fileno=int(each)) for each in sys.argv[2:4])
    path, trace, seed, count, longest, longest_turn = sys.argv[4:10]
    # Ctrl-C is the supervisor's, which ends this process by closing its socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shape = Shape(int(longest), int(longest_turn))
    load = load_of(Path(trace) if trace else None, int(seed), int(count), shape)
    gc.collect()
    gc.freeze()
    niceness = NICENESS if shape == SEVERAL_HOSTS else 0
    Nursery(parent, reports, load, Control(Path(path)), niceness).serve()
    return 0
