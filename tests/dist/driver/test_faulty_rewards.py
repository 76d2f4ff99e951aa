"""The driver and the real function reward with its worker processes; the other roles are fakes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from hpcflow.errors import JobFault
from hpcflow.roles.reward import FunctionRewardRole
from tests.support import sometimes_faulty
from tests.support.small_run import HELD_OUT, small_run

pytestmark = pytest.mark.dist


def test_rewards_that_fail_for_too_many_samples_end_the_run_before_it_trains(tmp_path: Path) -> None:
    """Numbers 0 to 3, two samples each: 1 hangs and 2 raises; of the held-out 50 to 52 one raises."""
    function = f"{sometimes_faulty.__file__}:mostly"
    overrides = ("data.shuffle=false", "health.max_faulty_rewards=0.25")
    with (
        closing(FunctionRewardRole(function, timeout_s=0.5, processes=2)) as reward,
        small_run(tmp_path, *overrides, reward=reward) as run,
    ):
        with pytest.raises(JobFault) as caught:
            run.trainer.run()
        [heldout] = run.rows("heldout")
        assert run.rows("train") == []
        assert run.folder.checkpoint_steps() == []
        assert "actor.update" not in run.log.names
    fault = caught.value
    assert (fault.cause, fault.role) == ("reward_faults", "reward")
    assert "4 of 8 samples could not be scored, above the limit of 25%" in fault.message
    assert "health.max_faulty_rewards" in fault.message
    assert "the first: sample 2: the reward function took longer than 0.5 s" in fault.message
    assert (heldout["prompts"], heldout["faulty_samples"], heldout["score"]) == (HELD_OUT, 1, 0.5)
