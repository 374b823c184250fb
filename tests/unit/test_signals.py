"""Signals reach the waiting thread, whichever thread the kernel gives them to."""

import os
import signal
import threading

from kvstore.signals import Signals

NUMBER = signal.SIGUSR2


def test_a_signal_to_the_process_is_told() -> None:
    """A signal is visible until it is taken once."""
    with Signals([NUMBER]) as signals:
        assert not signals.came(0.0)
        os.kill(os.getpid(), NUMBER)
        assert signals.came(30.0)
        assert signals.wait() is NUMBER
        assert not signals.came(0.0)
    assert signal.getsignal(NUMBER) is signal.SIG_DFL


def test_a_signal_that_another_thread_gets_is_told() -> None:
    """A signal that the kernel gives to another thread still reaches the waiting one."""
    done = threading.Event()
    with Signals([NUMBER]) as signals:
        other = threading.Thread(target=done.wait)
        other.start()
        assert other.ident is not None
        signal.pthread_kill(other.ident, NUMBER)
        assert signals.wait() is NUMBER
        done.set()
        other.join()
