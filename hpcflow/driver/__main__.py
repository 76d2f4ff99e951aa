"""`python -m hpcflow.driver`: the single controller of an attempt; everything comes from the environment.

Waits until all ranks are ready, then for nothing but their answers. Exit codes: 0 done, 75 stopped after a
checkpoint, 3 a fault that was told to the supervisor.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time

import torch

from hpcflow import signals
from hpcflow.checkpoint.store import CheckpointStore
from hpcflow.driver.collect import Collector
from hpcflow.driver.evaluate import Evaluator
from hpcflow.driver.groups import Groups
from hpcflow.driver.learn import Learner
from hpcflow.driver.loop import Trainer
from hpcflow.driver.prompt_file import read_prompt_sets
from hpcflow.driver.rendering import Renderer
from hpcflow.driver.report import Reporter
from hpcflow.driver.stopping import Stopped, StopRequest
from hpcflow.driver.weights import WeightPublisher
from hpcflow.errors import EXIT_FAILED, EXIT_OK, EXIT_REQUEUE
from hpcflow.observe.metrics import MetricsWriter
from hpcflow.observe.state import DriverState, StateFile
from hpcflow.plan.plan import Plan
from hpcflow.roles.algorithm import kl_controller_of, ppo_of
from hpcflow.rpc.control import ControlClient
from hpcflow.rpc.identity import ProcessIdentity
from hpcflow.rundir import RunDir
from hpcflow.spec.load import load_resolved
from hpcflow.spec.run import RunSpec

log = logging.getLogger("hpcflow.driver")


def main() -> int:
    """Run one attempt; returns the exit code."""
    identity = ProcessIdentity.from_environ()
    if identity.parent is not None:
        signals.die_with_parent(identity.parent)
    control = ControlClient(identity)
    stop = StopRequest()
    # A first INT or TERM reaches the supervisor, which asks by USR2; a terminal's Ctrl-C must not
    # end the driver before its checkpoint.
    signals.on_signals((signal.SIGUSR2, signal.SIGTERM, signal.SIGINT), stop.request)
    torch.set_num_threads(1)
    try:
        trainer = _build(identity, control, stop)
        try:
            trainer.run()
        finally:
            # The exit report takes its step from the state, of which the last change may be held back.
            trainer.reporter.close()
    except Stopped as stopped:
        log.info("%s", stopped)
        return EXIT_REQUEUE
    except Exception as error:
        # Whatever it is, the supervisor must hear of it before the process is gone.
        log.exception("the run cannot go on")
        control.report(error)
        return EXIT_FAILED
    return EXIT_OK


def _build(identity: ProcessIdentity, control: ControlClient, stop: StopRequest) -> Trainer:
    run = RunDir(identity.run_dir)
    spec, plan = load_resolved(run.spec_json), Plan.load(run.plan_json)
    # The driver is told to leave only when the attempt has failed: there is nothing left to save.
    control.start_heartbeat(spec.health.heartbeat_s, on_release=lambda: os._exit(EXIT_FAILED))
    state = StateFile(run.state_json, _first_state(identity.attempt, spec))
    # Data and tokenizer faults are found before any role loads its model.
    renderer = Renderer.load(spec.model.path, chat_template=spec.data.chat_template)
    sets = read_prompt_sets(spec, renderer)
    control.inputs_checked()
    groups = Groups.connect(control, identity.token, spec)
    collector = Collector(spec, groups, renderer)
    reporter = Reporter(
        MetricsWriter(run.metrics_jsonl),
        state,
        groups,
        attempt=identity.attempt,
        max_skipped_steps=spec.health.max_skipped_steps,
    )
    return Trainer(
        spec=spec,
        groups=groups,
        stream=sets.stream,
        collector=collector,
        learner=Learner(ppo_of(spec.algorithm), plan.batching, groups, spec.seed),
        evaluator=Evaluator(spec, sets.heldout, collector),
        weights=WeightPublisher(groups, plan.weights, spec.roles.rollout.tensor_parallel),
        checkpoints=CheckpointStore(run, spec.checkpoint.keep),
        reporter=reporter,
        stop=stop,
        kl=kl_controller_of(spec.algorithm.kl),
        attempt=identity.attempt,
    )


def _first_state(attempt: int, spec: RunSpec) -> DriverState:
    now = time.time()
    return DriverState(attempt=attempt, step=0, steps=spec.steps, phase="starting", time=now, started=now)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.exit(main())
