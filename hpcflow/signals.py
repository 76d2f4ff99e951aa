"""Signals without surprises: reported by a thread at once, and death with the parent.

Never does work inside a signal handler: the interpreter runs Python handlers in the main thread
only, after the C call it is in, which may be a collective that waits for minutes. Never blocks
signals of other threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def name_of(signum: int) -> str:
    """`SIGKILL`, or `signal 40` for a real-time signal, which has no name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def on_signals(signums: Iterable[int], callback: Callable[[int], None]) -> None:
    """Call `callback(signum)` in a thread whenever one of the signals arrives.

    Must be called from the main thread, once per process: the interpreter has one wake-up
    descriptor. The signals lose their default action, so they no longer end the process.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    wanted = frozenset(signums)
    for signum in wanted:
        signal.signal(signum, _leave_it_to_the_thread)

    def watch() -> None:
        with sender:  # held here, so that the descriptor stays open as long as the thread lives
            while received := receiver.recv(64):
                for signum in received:
                    if signum in wanted:
                        callback(signum)

    threading.Thread(target=watch, name="signals", daemon=True).start()


def _leave_it_to_the_thread(signum: int, frame: FrameType | None) -> None:
    """Do nothing: the wake-up descriptor has been written before this runs."""


def die_with_parent(expected_parent: int | None) -> None:
    """Ask the kernel to kill this process when the thread that started it ends.

    Where the parent has died already (another process is the parent then) it ends at once. None does
    nothing: the parent is not the supervisor then, but a scheduler that ends its own steps.

    Raises:
        OSError: the kernel refused.
    """
    if expected_parent is None:
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != expected_parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none slips away.

    Raises:
        OSError: the kernel refused.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
