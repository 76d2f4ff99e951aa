"""Bad input that only the job itself can find: it ends with a report, and `--follow` and `status` show it.

Faults of the first step are found before any model is loaded.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcflow.observe.exit_report import ExitReport
from hpcflow.roles.worker import LOADING
from hpcflow.spec.roles import ROLE_NAMES
from tests.support.real_runs import CONFIG, RealRun, Site, arguments, said_by
from tests.support.short_runs import Killed

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


def failed(site: Site, name: str, overrides: list[str]) -> tuple[RealRun, ExitReport]:
    """Follow a run to its failure."""
    real = site.run_of(name)
    with site.following(*arguments(CONFIG, name, overrides)) as follower:
        printed = said_by(follower)
    assert follower.returncode == 3, printed
    report = real.ended()
    assert report.outcome == "failed"
    assert real.left() == []
    status = site.hpcflow("status", str(real.run.path))
    assert status.returncode == 0
    for text in (printed, status.stdout):
        assert "failed" in text
        assert report.message in text
    return real, report


def loading(real: RealRun) -> list[str]:
    """Roles whose rank 0 went on to load its model."""
    attempt = real.run.attempt(1)
    return [role for role in ROLE_NAMES if LOADING in attempt.log(role, 0).read_text()]


def unimportable_reward(folder: Path, model: Path) -> list[str]:
    file = folder / "reward.py"
    file.write_text(
        "import a_module_that_is_not_there\n\n\ndef score(prompt, response, row):\n    return 1.0\n"
    )
    return [f"roles.reward.function={file}:score"]


def no_chat_template(folder: Path, model: Path) -> list[str]:
    plain = folder / "model"
    shutil.copytree(model, plain)
    (plain / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((plain / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (plain / "tokenizer_config.json").write_text(json.dumps(config))
    return [f"model.path={plain}", "data.chat_template=true"]


@pytest.mark.parametrize(
    ("make", "cause", "role", "message"),
    [
        (unimportable_reward, "spec", "reward", "No module named 'a_module_that_is_not_there'"),
        (no_chat_template, "spec", "driver", "chat template"),
    ],
)
def test_a_fault_of_the_first_step_ends_the_run_before_a_model_is_loaded(
    site: Site,
    demo: Path,
    tmp_path: Path,
    make: Callable[[Path, Path], list[str]],
    cause: str,
    role: str,
    message: str,
) -> None:
    overrides = make(tmp_path, demo / "sums-model")
    real, report = failed(site, make.__name__, overrides)
    assert (report.cause, report.role) == (cause, role)
    assert message in report.message
    assert loading(real) == [], "no model is loaded before all inputs are checked"
    assert real.written() == []


def test_every_rank_loads_once_inputs_are_checked(straight: Killed) -> None:
    assert loading(straight.real) == ["actor", "critic", "reference", "reward", "rollout"]


def test_rewards_that_fail_for_some_samples_are_counted_and_the_run_goes_on(straight: Killed) -> None:
    rows = straight.rows
    assert sum(row["faulty_samples"] for row in rows) > 0
    for row in rows:
        assert row["samples"] == 32 - row["faulty_samples"]
        assert row["skipped"] == 0
        assert row["reward"] is not None
    log = straight.real.run.attempt(1).log("driver", 0).read_text()
    assert "ValueError: no opinion on" in log
    assert "returned nan, which is not finite" in log
