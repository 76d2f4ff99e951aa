"""One attempt of a run in this process: the driver's real parts, and fake roles behind fake groups.

A real reward can take the place of the fake one.
A step takes 4 prompts and 2 samples of each, and makes 2 optimizer steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcflow.checkpoint.store import CheckpointStore
from hpcflow.driver.collect import Collector
from hpcflow.driver.evaluate import Evaluator
from hpcflow.driver.groups import Groups
from hpcflow.driver.learn import Learner
from hpcflow.driver.loop import Trainer
from hpcflow.driver.prompts import HeldOut, Prompt, PromptStream
from hpcflow.driver.rendering import Renderer
from hpcflow.driver.report import Reporter
from hpcflow.driver.stopping import StopRequest
from hpcflow.driver.weights import WeightPublisher
from hpcflow.observe.metrics import MetricsReader, MetricsWriter
from hpcflow.observe.state import DriverState, StateFile
from hpcflow.plan.build import build
from hpcflow.plan.plan import Plan
from hpcflow.roles.algorithm import kl_controller_of, ppo_of
from hpcflow.roles.contract import Reward
from hpcflow.rundir import RunDir
from hpcflow.spec.run import RunSpec
from tests.support.fake_groups import CallLog, FakeGroup
from tests.support.fake_roles import FakeActor, FakeCritic, FakeReference, FakeReward, FakeRollout
from tests.support.specs import tiny_spec
from tests.support.tiny_model import VOCABULARY
from tests.support.tiny_tokenizer import tiny_tokenizer

SETTINGS = (
    "steps=4",
    "algorithm.prompts_per_step=4",
    "algorithm.samples_per_prompt=2",
    "evaluation.every_steps=2",
    "checkpoint.every_steps=2",
)
SAMPLES = 8
TRAINING, HELD_OUT = 10, 3


@dataclass
class FakeRoles:
    """The ranks of each role."""

    actor: list[FakeActor]
    critic: list[FakeCritic]
    reference: list[FakeReference]
    reward: list[FakeReward]
    rollout: list[FakeRollout]

    @staticmethod
    def of(plan: Plan) -> FakeRoles:
        """As many ranks as planned."""
        sizes = {role.role: role.world_size for role in plan.roles}
        return FakeRoles(
            actor=[FakeActor(rank) for rank in range(sizes["actor"])],
            critic=[FakeCritic(rank) for rank in range(sizes["critic"])],
            reference=[
                FakeReference() for role in plan.roles if role.role == "reference" for _ in role.ranks
            ],
            reward=[FakeReward() for _ in range(sizes["reward"])],
            rollout=[FakeRollout() for _ in range(sizes["rollout"])],
        )

    def groups(self, log: CallLog, reward: Reward | None = None) -> Groups:
        """A fake group per role; none for the reference where it has no rank. `reward` replaces the fakes."""
        return Groups(
            actor=FakeGroup("actor", self.actor, log),
            critic=FakeGroup("critic", self.critic, log),
            reference=FakeGroup("reference", self.reference, log) if self.reference else None,
            reward=FakeGroup("reward", self.reward if reward is None else [reward], log),
            rollout=FakeGroup("rollout", self.rollout, log),
        )


@dataclass
class SmallRun:
    """An attempt that can be run, and what it is made of."""

    folder: RunDir
    spec: RunSpec
    roles: FakeRoles
    trainer: Trainer
    stop: StopRequest
    log: CallLog = field(repr=False)

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """All rows of a kind that any attempt wrote, in order."""
        rows = MetricsReader(self.folder.metrics_jsonl).new_rows()
        return [row for row in rows if row["kind"] == kind]

    def prompts_asked(self) -> list[list[list[int]]]:
        """Per training step the prompts that were sampled from, over all rollout ranks."""
        calls = [call for call in self.log.requests("rollout.generate") if call[0].temperature > 0]
        return [[prompt for request in call for prompt in request.prompts] for call in calls]


def numbered_prompts(count: int, *, first: int = 0) -> list[Prompt]:
    """Prompts of two tokens, of which the first is as good as the number."""
    return [
        Prompt(id=n, token_ids=(3 + n, 40), text=f"prompt {n}", row={"number": n})
        for n in range(first, first + count)
    ]


@contextmanager
def small_run(
    path: Path,
    *overrides: str,
    attempt: int = 1,
    prompts: Sequence[Prompt] | None = None,
    reward: Reward | None = None,
) -> Iterator[SmallRun]:
    """An attempt in the run folder `path`; all that it called was waited for in the end."""
    path.mkdir(exist_ok=True)
    spec = tiny_spec(path / "spec", *SETTINGS, *overrides)
    plan, run, log, stop = build(spec), RunDir(path), CallLog(), StopRequest()
    roles = FakeRoles.of(plan)
    groups = roles.groups(log, reward)
    training = prompts or numbered_prompts(TRAINING)
    heldout = HeldOut(numbered_prompts(HELD_OUT, first=50), training=training)
    collector = Collector(
        spec, groups, Renderer(tiny_tokenizer(), chat_template=False, vocabulary=VOCABULARY)
    )
    first = DriverState(attempt=attempt, step=0, steps=spec.steps, phase="starting", time=0.0, started=0.0)
    reporter = Reporter(
        MetricsWriter(run.metrics_jsonl),
        StateFile(run.state_json, first),
        groups,
        attempt=attempt,
        max_skipped_steps=spec.health.max_skipped_steps,
    )
    trainer = Trainer(
        spec=spec,
        groups=groups,
        stream=PromptStream(training, seed=spec.seed, shuffle=spec.data.shuffle),
        collector=collector,
        learner=Learner(ppo_of(spec.algorithm), plan.batching, groups, spec.seed),
        evaluator=Evaluator(spec, heldout, collector),
        weights=WeightPublisher(groups, plan.weights, spec.roles.rollout.tensor_parallel),
        checkpoints=CheckpointStore(run, spec.checkpoint.keep),
        reporter=reporter,
        stop=stop,
        kl=kl_controller_of(spec.algorithm.kl),
        attempt=attempt,
    )
    try:
        yield SmallRun(run, spec, roles, trainer, stop, log)
        assert log.under_way == []
    finally:
        reporter.close()
        for group in groups.every():
            group.close()
