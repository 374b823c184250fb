"""Signals are told to whoever waits, whichever thread the kernel hands them to."""

import os
import signal
import threading

from kvstore.process import Signals

NUMBER = signal.SIGUSR2


def test_a_signal_to_the_process_is_told() -> None:
    """It is there to be seen before it is taken, and then no more."""
    with Signals([NUMBER]) as signals:
        assert not signals.came(0.0)
        os.kill(os.getpid(), NUMBER)
        assert signals.came(30.0)
        assert signals.wait() is NUMBER
        assert not signals.came(0.0)
    assert signal.getsignal(NUMBER) is signal.SIG_DFL


def test_a_signal_that_another_thread_gets_is_told() -> None:
    """A thread that a library started blocks nothing, and may be the one that gets it."""
    done = threading.Event()
    with Signals([NUMBER]) as signals:
        other = threading.Thread(target=done.wait)
        other.start()
        assert other.ident is not None
        signal.pthread_kill(other.ident, NUMBER)
        assert signals.wait() is NUMBER
        done.set()
        other.join()
