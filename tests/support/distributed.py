"""Run a plain function on N Python processes and collect what each returned.

The processes share a board (a key-value store on a random port), over which they exchange ports and
small results. All of them are ended when one fails or the time is up.

They are forked, one by one, from a server that has imported `preloaded` and does nothing else; ranks that
must import under an environment of their own start as fresh interpreters.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

ADDRESS = "127.0.0.1"
GRACE_S = 10.0
PRELOADED = "tests.support.preloaded"


@dataclass(frozen=True)
class Spot:
    """Which of the processes this one is, and where the board is."""

    rank: int
    world_size: int
    board_port: int
    timeout_s: float

    def board(self) -> TCPStore:
        """Connect to the board; `get` waits for a key that is not there yet."""
        limit = timedelta(seconds=self.timeout_s)
        return TCPStore(ADDRESS, self.board_port, is_master=False, wait_for_workers=False, timeout=limit)


def start_server() -> None:
    """Start the server from which ranks are forked, unless it runs; it ends with this process.

    Its imports take seconds, for which nobody waits who comes later.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([PRELOADED])
    forkserver.ensure_running()


def run_distributed(
    function: Callable[..., Any],
    world_size: int,
    *,
    arguments: Sequence[Any] = (),
    fresh: Container[int] = (),
    timeout_s: float = 120.0,
) -> list[Any]:
    """Call `function(spot, *arguments)` in `world_size` processes; returns results by rank.

    Ranks in `fresh` start as fresh interpreters. The function must be importable (module level). Fails
    with the traceback of the first rank that raised, or with the ranks that were still running at the end
    of the time.
    """
    board = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
    start_server()
    forked, spawned = multiprocessing.get_context("forkserver"), multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    receivers: list[Connection] = []
    for rank in range(world_size):
        context = spawned if rank in fresh else forked
        receiver, sender = context.Pipe(duplex=False)
        spot = Spot(rank, world_size, board.port, timeout_s)
        process = context.Process(target=_child, args=(sender, function, spot, tuple(arguments)))
        process.start()
        sender.close()
        processes.append(process)
        receivers.append(receiver)
    try:
        return _collect(receivers, deadline=time.monotonic() + timeout_s)
    finally:
        _end(processes)


def _collect(receivers: list[Connection], *, deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(receivers):
        waiting = [r for rank, r in enumerate(receivers) if rank not in results]
        ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        late = [rank for rank in range(len(receivers)) if rank not in results]
        assert ready, f"ranks {late} were still running when the time was up"
        for receiver in ready:
            rank = receivers.index(receiver)  # type: ignore[arg-type]
            try:
                succeeded, value = receivers[rank].recv()
            except EOFError:
                succeeded, value = False, "it ended without an answer"
            assert succeeded, f"rank {rank} failed:\n{value}"
            results[rank] = value
    return [results[rank] for rank in range(len(receivers))]


def _end(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.join(GRACE_S)
        if process.is_alive():
            process.kill()
            process.join(GRACE_S)


def _child(sender: Connection, function: Callable[..., Any], spot: Spot, arguments: tuple[Any, ...]) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        sender.send((True, function(spot, *arguments)))
    except BaseException:
        sender.send((False, traceback.format_exc()))
