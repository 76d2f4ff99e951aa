"""The parent of all processes of an attempt: starts them, watches them, ends them, writes one report.

A thin loop around `Machine` (what to do) and `Desk` (what to answer). It waits for children, requests
and signals at once, at most `_TICK_S`; processes wait for each other only through its control socket.
Never restarts anything, and never leaves before all that it started is gone.

Exit codes: 0 done, 75 stopped by a scheduler and resumable, 130 stopped by a person (INT), 3 failed. Under
submitit's local executor none of them restarts anything (only 144 would): the run ends here. On Slurm 75 asks
for a requeue.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import msgspec
import zmq

from hpcflow import atomic, signals
from hpcflow.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_REQUEUE
from hpcflow.job import report
from hpcflow.job.commands import is_command, members, optional
from hpcflow.job.desk import Desk
from hpcflow.job.launchers import Launcher, LocalLauncher
from hpcflow.job.machine import Action, Limits, Machine
from hpcflow.job.processes import Children
from hpcflow.job.report import tail_of
from hpcflow.job.verdict import THE_DRIVER, Evidence, Member, Verdict, reported
from hpcflow.observe.exit_report import ExitReport, write_exit
from hpcflow.observe.processes import ProcessMark
from hpcflow.plan.plan import Plan
from hpcflow.rpc.control import Beat, Exited, FaultReport, Ready, Request, Signalled
from hpcflow.rpc.control_server import ControlServer
from hpcflow.rpc.identity import SUPERVISOR, ProcessIdentity, RankEndpoint
from hpcflow.rundir import AttemptDir, RunDir
from hpcflow.spec.load import load_resolved
from hpcflow.spec.run import RunSpec

_log = logging.getLogger(__name__)

_TICK_S = 0.2
# A process is silent after so long, and never before it has missed so many beats.
_SILENT_S = 120.0
_SILENT_BEATS = 4
# The end of a step's output is enough to tell why it ended.
_STEP_OUTPUT_BYTES = 65536

MakeLauncher = Callable[[Plan, RunSpec], Launcher]


def supervise(run: RunDir, launcher: MakeLauncher = LocalLauncher) -> int:
    """Run one attempt to its end, publish its exit report, return the exit code.

    `launcher` is called with the run's plan and spec.

    Raises:
        OSError: the run folder cannot be written.
    """
    attempt = new_attempt(run)
    _log_to(attempt)
    wake_read, wake_write = os.pipe()
    signals.on_signals(
        (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2),
        lambda signum: _pass_on(wake_write, signum),
    )
    signals.adopt_orphans()
    mark = ProcessMark.of(os.getpid())
    atomic.write_json(attempt.supervisor_json, msgspec.to_builtins(mark))
    by_person = False
    try:
        plan, spec = Plan.load(run.plan_json), load_resolved(run.spec_json)
        supervisor = Supervisor(attempt, spec, launcher(plan, spec), members(plan), requests=wake_read)
        outcome = supervisor.run(run)
        by_person = supervisor.stopped_by_person
    except Exception as error:
        _log.exception("the supervisor failed")
        message = f"{type(error).__name__}: {error}"
        evidence = Evidence(Member(SUPERVISOR, 0), "supervisor_error", message, time.monotonic())
        verdict = Verdict("failed", evidence)
        outcome = report.build(attempt, verdict, statuses={}, hosts={}, resident_bytes={})
        write_exit(attempt, outcome)
    return exit_code(outcome, by_person=by_person)


def _pass_on(pipe: int, signum: int) -> None:
    os.write(pipe, bytes([signum]))


def exit_code(outcome: ExitReport, *, by_person: bool = False) -> int:
    """Of `python -m hpcflow.job`; what a person stopped is not to be requeued."""
    if outcome.outcome == "done":
        return EXIT_OK
    if outcome.outcome == "failed" or outcome.cause == "aborted":
        return EXIT_FAILED
    return EXIT_INTERRUPTED if by_person else EXIT_REQUEUE


def new_attempt(run: RunDir) -> AttemptDir:
    """Make the next attempt's folder; two supervisors never get the same one."""
    first = 1 + max((attempt.number for attempt in run.attempts()), default=0)
    for number in itertools.count(first):
        attempt = run.attempt(number)
        try:
            attempt.path.mkdir()
        except FileExistsError:  # another supervisor was faster
            continue
        attempt.logs.mkdir()
        return attempt
    raise AssertionError("there is always a next number")


class Supervisor:
    """One attempt; `roles` are its ranks, `requests` is a pipe of signal numbers."""

    def __init__(
        self,
        attempt: AttemptDir,
        spec: RunSpec,
        launcher: Launcher,
        roles: Sequence[Member],
        *,
        requests: int,
    ) -> None:
        self._attempt = attempt
        self._launcher = launcher
        self._requests = requests
        self._token = secrets.token_hex(32)
        self._control = ControlServer(launcher.address, self._token)
        self._children = Children()
        spared = optional(spec)
        self._desk = Desk(
            [member for member in roles if not is_command(member)],
            self._control.answer,
            launcher.hosts,
            commands={member: member.role not in spared for member in roles if is_command(member)},
        )
        self._published: dict[str, list[RankEndpoint]] = {}
        lead_s = float(spec.slurm.signal_lead_s)
        limits = Limits(
            spec.health.start_timeout_s,
            stop_s=lead_s,
            preemption_s=lead_s,
            silent_s=max(_SILENT_S, _SILENT_BEATS * spec.health.heartbeat_s),
        )
        # A step that only holds what is optional is optional, too.
        spared |= {
            step.role for step, ranks in launcher.steps.items() if all(rank.role in spared for rank in ranks)
        }
        self._machine = Machine(roles, limits, time.monotonic(), steps=launcher.steps, optional=spared)
        self._poller = zmq.Poller()
        self._poller.register(self._control.socket, zmq.POLLIN)
        self._poller.register(requests, zmq.POLLIN)

    @property
    def stopped_by_person(self) -> bool:
        """Whether it was a person who asked to stop, not a scheduler."""
        return self._machine.stopped_by_person

    def run(self, run: RunDir) -> ExitReport:
        """Start everything, wait for the end, publish the report when nothing is left."""
        sweeper = self._start_sweeper()
        try:
            self._start(run)
            while not self._machine.over:
                self._turn()
        finally:
            # Also after an exception of our own: nothing may stay behind.
            stuck = self._children.sweep()
            if stuck:
                _log.error("processes %s cannot be ended", stuck)
        verdict = self._machine.verdict
        assert verdict is not None
        outcome = report.build(
            self._attempt,
            verdict,
            statuses=self._machine.statuses,
            hosts=self._desk.hosts,
            resident_bytes=self._desk.resident_bytes,
            gone=self._machine.gone,
        )
        write_exit(self._attempt, outcome)
        _log.info("%s: %s: %s", outcome.outcome, outcome.cause, outcome.message)
        sweeper.kill()
        sweeper.wait(timeout=10)
        self._control.close()
        return outcome

    def _start_sweeper(self) -> subprocess.Popen[bytes]:
        attempt = self._attempt
        arguments = [str(os.getpid()), str(attempt.path), str(attempt.number)]
        with attempt.log("sweeper", 0).open("ab") as output:
            sweeper = subprocess.Popen(
                [sys.executable, "-m", "hpcflow.job.sweeper", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "HPCFLOW_TOKEN": self._token},
                start_new_session=True,
            )
        self._children.spare(sweeper.pid)
        return sweeper

    def _start(self, run: RunDir) -> None:
        own = ProcessIdentity(
            run_dir=run.path.absolute(),
            attempt=self._attempt.number,
            control=self._control.endpoint,
            token=self._token,
            role=SUPERVISOR,
            rank=0,
            local_rank=0,
            world_size=1,
            address=self._launcher.address,
            parent=None,
        )
        for start in self._launcher.starts(own):
            member = start.member
            log = self._attempt.log(member.role, member.rank)
            child = self._children.start(member, start.argv, environ=start.environ, log=log)
            self._poller.register(child.pidfd, zmq.POLLIN)
            _log.info("started %s: pid %d: %s", member, child.process.pid, shlex.join(start.argv))

    def _turn(self) -> None:
        """Wait for events or a tick, tell the machine, do what it says."""
        ready = dict(self._poller.poll(int(_TICK_S * 1000)))
        now = time.monotonic()
        actions: list[Action] = []
        gone = len(self._machine.gone)
        for peer, request in self._control.receive():
            actions += self._note(request, now)
            self._desk.receive(peer, request, now)
        for child, status in self._children.reap():
            self._poller.unregister(child.pidfd)
            _log.info("%s ended: %d", child.member, status)
            actions += self._ended(child.member, status, now)
        if self._requests in ready:
            for signum in os.read(self._requests, 64):
                _log.info("received %s", signal.Signals(signum).name)
                actions += self._machine.requested(signum, now)
        for member, why in list(self._machine.gone.items())[gone:]:
            _log.warning("the run goes on without %s: %s", member, why)
            self._desk.forget(member)
        # Before anybody is answered: the driver may send others to look there.
        self._publish()
        for action in [*actions, *self._machine.tick(now)]:
            self._do(action, now)
        self._desk.serve(now)

    def _publish(self) -> None:
        """Tell where ranks serve, whenever that changes."""
        endpoints = self._desk.endpoints()
        if endpoints != self._published:
            atomic.write_json(self._attempt.endpoints_json, msgspec.to_builtins(endpoints))
            self._published = endpoints

    def _ended(self, member: Member, status: int, now: float) -> list[Action]:
        """A child of the supervisor has ended: the driver, a rank, or a step with the ranks in it."""
        if member not in self._launcher.steps:
            return self._machine.exited(member, status, now)
        output = tail_of(self._attempt.log(member.role, member.rank), _STEP_OUTPUT_BYTES)
        evidence = self._launcher.blame(member, status, output, now)
        return self._machine.step_ended(member, self._launcher.steps[member], evidence, now)

    def _note(self, request: Request, now: float) -> list[Action]:
        """Tell the machine of a request that matters to it."""
        member = Member(request.role, request.rank)
        match request:
            case Ready():
                _log.info("%s is ready at %s", member, request.endpoint)
                return self._machine.ready(member)
            case Beat():
                return self._machine.beat(member, now)
            case Exited():
                ended = Member(request.at_role, request.at_rank)
                _log.info("%s tells that %s ended: %d", member, ended, request.status)
                return self._machine.exited(ended, request.status, now)
            case Signalled():
                _log.info("%s received signal %d", member, request.signum)
                return self._machine.signalled(request.signum, now)
            case FaultReport():
                _log.error("%s reports: %s: %s", member, request.cause, request.message)
                at = Member(request.at_role, request.at_rank)
                evidence = reported(at, request.cause, request.message, hint=request.hint, at=now)
                return self._machine.fault(member, evidence)
        return []

    def _do(self, action: Action, now: float) -> None:
        _log.info("%s", action.value)
        match action:
            case Action.ASK_DRIVER:
                self._children.send(signal.SIGUSR2, lambda member: member == THE_DRIVER)
            case Action.RELEASE:
                self._desk.release(now)
            case Action.TERMINATE:
                self._children.send(signal.SIGTERM)
            case Action.KILL:
                self._launcher.kill(self._children)


def _log_to(attempt: AttemptDir) -> None:
    """The supervisor's own log, beside those of its processes."""
    handler = logging.FileHandler(attempt.log(SUPERVISOR, 0))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("hpcflow")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
