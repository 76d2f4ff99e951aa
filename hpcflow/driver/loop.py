"""The training loop: one page, and who waits for whom.

    prompts -> rollout -> [reward | actor | reference | critic] -> advantages -> [actor | critic] -> weights

The driver waits for the roles in brackets together, for the others alone. A stop request is read between
phases only: what was not yet trained on is dropped and its prompts come again after a resume.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from hpcflow.algorithms.kl import KlController
from hpcflow.checkpoint.store import CheckpointStore
from hpcflow.driver.clock import StepClock
from hpcflow.driver.collect import Collector
from hpcflow.driver.evaluate import Evaluator
from hpcflow.driver.experience import Experience
from hpcflow.driver.groups import Groups
from hpcflow.driver.learn import Learner
from hpcflow.driver.prompts import PromptStream
from hpcflow.driver.report import Reporter
from hpcflow.driver.stopping import Stopped, StopRequest
from hpcflow.driver.weights import WeightPublisher
from hpcflow.roles import contract
from hpcflow.roles.contract import SaveRequest
from hpcflow.rpc.group import wait
from hpcflow.spec.run import RunSpec

log = logging.getLogger(__name__)


@dataclass
class Trainer:
    """One attempt of a run, from the newest complete checkpoint to the last step."""

    spec: RunSpec
    groups: Groups
    stream: PromptStream
    collector: Collector
    learner: Learner
    evaluator: Evaluator
    weights: WeightPublisher
    checkpoints: CheckpointStore
    reporter: Reporter
    stop: StopRequest
    kl: KlController
    attempt: int
    done: int = 0
    position: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Train until the last step.

        Raises:
            Stopped: a stop was asked for; a checkpoint holds everything that was trained.
            JobFault: a role failed or a limit was passed.
        """
        self.position = self.stream.state()
        self._restore()
        self.weights.open()
        self.weights.publish(self.done, StepClock())
        if self.done == 0 and not self.stop.requested():
            self._evaluate()
        while self.done < self.spec.steps:
            if self.stop.requested() or not self._train():
                self._save()
                raise Stopped(f"stopped after step {self.done} ({self.stop.reason})")
            if self.stop.requested() and self.done < self.spec.steps:
                continue  # the time that is left is for the checkpoint
            if self._due(self.spec.evaluation.every_steps):
                self._evaluate()
            if self._due(self.spec.checkpoint.every_steps):
                self._save()
        self.reporter.finished()

    def _train(self) -> bool:
        """One step; False where a stop request came before anything was trained."""
        step, clock = self.done + 1, StepClock()
        self.reporter.phase("generate", step)
        prompts = self.stream.next(self.spec.algorithm.prompts_per_step)
        experience: Experience = self.collector.collect(step, prompts, clock)
        if self.stop.requested():
            return False
        self.reporter.phase("update", step)
        learned = self.learner.learn(step, experience, self.kl, clock)
        self.weights.publish(step, clock)
        self.done, self.position = step, self.stream.state()
        self.reporter.trained(step, experience, learned, self.kl.beta, clock)
        self.kl = self.kl.updated(learned.kl, self.learner.batching.samples_per_step)
        return True

    def _due(self, every: int) -> bool:
        return self.done % every == 0 or self.done == self.spec.steps

    def _evaluate(self) -> None:
        self.reporter.phase("evaluate", self.done)
        clock = StepClock()
        result = self.evaluator.evaluate(clock)
        self.reporter.evaluated(self.done, result, clock)

    def _save(self) -> None:
        """A checkpoint after the last whole step, unless there is one."""
        if self.checkpoints.complete(self.done):
            return
        self.reporter.phase("save", self.done)
        clock = StepClock()
        request = SaveRequest(str(self.checkpoints.begin(self.done)))
        with clock.phase("save"):
            actor = self.groups.actor.start(contract.Actor.save, request)
            critic = self.groups.critic.start(contract.Critic.save, request)
            clock.wait(actor, critic)
            self.checkpoints.commit(self.done, attempt=self.attempt, driver=self._state())
        self.reporter.saved(self.done, clock)

    def _state(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "kl": self.kl.state(),
            "reporter": self.reporter.memory(),
        }

    def _restore(self) -> None:
        found = self.checkpoints.latest()
        if found is None:
            return
        self.reporter.phase("load", found.manifest.step)
        request = SaveRequest(str(found.folder))
        actor = self.groups.actor.start(contract.Actor.load, request)
        critic = self.groups.critic.start(contract.Critic.load, request)
        wait(actor, critic)
        driver = found.manifest.driver
        self.done, self.position = found.manifest.step, driver["position"]
        self.stream.load_state(self.position)
        self.kl = self.kl.load(driver["kl"])
        self.reporter.remember(self.done, driver["reporter"])
        log.info("resumed from %s at step %d", found.folder, self.done)
