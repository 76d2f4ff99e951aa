"""A pool of worker processes that call the user's reward function, each sample within its time limit.

Samples travel in chunks so that a cheap function costs little overhead. A chunk is boxed in time: a worker
hands back what it has after `BOX_S` and the rest is queued again, so no slow but honest sample is killed
for the company it keeps. When a worker hangs or dies, shared memory tells which sample was under way: that
one is charged, the others of its chunk are queued again.

Never imports user code; never decides how many faults are too many (the driver does). The role waits here
for its workers, at most `stall` seconds between two results.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool

from pebble import CONSTS, ProcessExpired, ProcessPool

from hpcflow.errors import JobFault
from hpcflow.roles import reward_calls
from hpcflow.roles.reward_calls import Call, Outcome
from hpcflow.signals import name_of

BOX_S = 0.25
CHUNK_LIMIT = 64
QUEUED_PER_WORKER = 2
REBUILD_LIMIT = 3
BEFORE_FIRST = -1

Chunk = list[int]
ChunkFuture = Future[list[Outcome]]


class FunctionPool:
    """Workers for one function; start it in a thread that lives as long as the pool.

    Linux ties a worker's life to the thread that started it.
    """

    def __init__(self, reference: str, *, processes: int, timeout_s: float, start_timeout_s: float) -> None:
        self._reference = reference
        self._processes = processes
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._context = multiprocessing.get_context("spawn")
        self._progress = self._context.RawArray("i", processes * QUEUED_PER_WORKER)
        # Workers ignore TERM, so waiting long between TERM and KILL only holds up the others.
        CONSTS.term_timeout = 0.1
        self._pool = self._new_pool()

    def fault(self) -> str:
        """Why the function cannot be used, found out in a worker; empty when it can."""
        try:
            future: Future[str] = self._pool.schedule(reward_calls.fault)
            return future.result(timeout=self._start_timeout_s)
        except TimeoutError:
            return f"importing it did not end within {self._start_timeout_s:g} s"
        except (BrokenProcessPool, ProcessExpired):
            return "importing it ended the worker process"

    def score(self, calls: Sequence[Call]) -> list[Outcome]:
        """One outcome per call, in order.

        Raises `JobFault` (cause `role_error`) when workers keep dying without a sample to charge.
        """
        return _Scoring(self, calls).run()

    def schedule(self, slot: int, calls: Sequence[Call]) -> ChunkFuture:
        """Hand one chunk to the workers; `slot` is where its progress will be found."""
        self._progress[slot] = BEFORE_FIRST
        box_s = min(BOX_S, self._timeout_s)
        future: ChunkFuture = self._pool.schedule(
            reward_calls.score_chunk,
            args=(slot, calls, self._timeout_s, box_s),
            timeout=box_s + self._timeout_s,
        )
        return future

    def under_way(self, slot: int) -> int:
        """Index in its chunk of the sample last begun in `slot`, or `BEFORE_FIRST`."""
        return int(self._progress[slot])

    def rebuild(self) -> None:
        """Replace the whole pool after it broke or stalled."""
        self.close()
        self._pool = self._new_pool()

    def close(self) -> None:
        """End all workers; queued chunks are dropped."""
        self._pool.stop()
        self._pool.join()

    @property
    def processes(self) -> int:
        """Number of workers."""
        return self._processes

    @property
    def timeout_s(self) -> float:
        """Seconds that one sample may take."""
        return self._timeout_s

    @property
    def stall_s(self) -> float:
        """Seconds without any result after which the pool itself must be broken."""
        return BOX_S + self._timeout_s + self._start_timeout_s

    def _new_pool(self) -> ProcessPool:
        return ProcessPool(
            max_workers=self._processes,
            context=self._context,
            initializer=reward_calls.start,
            initargs=(self._reference, os.getpid(), self._progress),
        )


class _Scoring:
    """One request under way: what waits, what is in flight, what is known."""

    def __init__(self, pool: FunctionPool, calls: Sequence[Call]) -> None:
        self._pool = pool
        self._calls = calls
        self._outcomes: dict[int, Outcome] = {}
        self._waiting: deque[Chunk] = deque(_chunks(len(calls), pool.processes))
        self._flying: dict[ChunkFuture, tuple[int, Chunk]] = {}
        self._free_slots = list(range(pool.processes * QUEUED_PER_WORKER))
        self._strikes: Counter[int] = Counter()
        self._rebuilds = 0

    def run(self) -> list[Outcome]:
        while self._waiting or self._flying:
            try:
                self._launch()
                done, _ = wait(self._flying, timeout=self._pool.stall_s, return_when=FIRST_COMPLETED)
                if not done:
                    raise BrokenProcessPool(f"no result within {self._pool.stall_s:g} s")
                for future in done:
                    self._collect(future)
            except RuntimeError as error:  # of pebble: BrokenProcessPool, and its refusals after it
                self._recover(error)
        return [self._outcomes[index] for index in range(len(self._calls))]

    def _launch(self) -> None:
        while self._waiting and self._free_slots:
            chunk, slot = self._waiting.popleft(), self._free_slots.pop()
            try:
                future = self._pool.schedule(slot, [self._calls[index] for index in chunk])
            except RuntimeError:
                self._waiting.appendleft(chunk)
                self._free_slots.append(slot)
                raise
            self._flying[future] = (slot, chunk)

    def _collect(self, future: ChunkFuture) -> None:
        """Take a chunk's results, or charge the sample that its worker hung or died in."""
        slot, chunk = self._flying[future]
        try:
            outcomes = future.result(timeout=0)
        except TimeoutError:
            self._charge(slot, chunk, reward_calls.late(self._pool.timeout_s))
        except ProcessExpired as error:
            self._charge(slot, chunk, _death(error.exitcode))
        else:
            self._outcomes.update(zip(chunk, outcomes, strict=False))
            self._requeue(chunk[len(outcomes) :])
        del self._flying[future]
        self._free_slots.append(slot)

    def _charge(self, slot: int, chunk: Chunk, reason: str) -> None:
        begun = self._pool.under_way(slot)
        if begun == BEFORE_FIRST:
            self._count_rebuild(reason)
            self._requeue(chunk)
            return
        self._outcomes[chunk[begun]] = (None, reason)
        self._requeue(chunk[begun + 1 :])
        self._requeue(chunk[:begun])

    def _recover(self, error: Exception) -> None:
        """Start a new pool; a sample that was under way in two broken pools is charged."""
        for slot, chunk in self._flying.values():
            begun = self._pool.under_way(slot)
            if begun != BEFORE_FIRST:
                self._strikes[chunk[begun]] += 1
            struck = {index for index in chunk if self._strikes[index] > 1}
            self._outcomes.update((index, (None, "the worker process died")) for index in struck)
            self._requeue([index for index in chunk if index not in struck])
            self._free_slots.append(slot)
        self._flying.clear()
        self._count_rebuild(str(error))
        self._pool.rebuild()

    def _count_rebuild(self, reason: str) -> None:
        self._rebuilds += 1
        if self._rebuilds > REBUILD_LIMIT:
            raise JobFault(
                f"the reward's worker processes keep failing: {reason}",
                cause="role_error",
                role="reward",
                hint="read the reward's log; are the workers killed for memory?",
            )

    def _requeue(self, chunk: Chunk) -> None:
        if chunk:
            self._waiting.appendleft(chunk)


def _chunks(count: int, processes: int) -> list[Chunk]:
    """Cut `count` samples so that each worker gets about four chunks, of at most CHUNK_LIMIT."""
    size = min(CHUNK_LIMIT, max(1, -(-count // (4 * processes))))
    return [list(range(first, min(first + size, count))) for first in range(0, count, size)]


def _death(exitcode: int) -> str:
    if exitcode < 0:
        return f"the worker process was killed by {name_of(-exitcode)}"
    return f"the worker process ended with exit code {exitcode}"
