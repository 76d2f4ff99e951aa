"""Commands as roles on a real cluster. The other roles and the driver only wait."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psutil
import pytest

from tests.support.fake_job import REPOSITORY
from tests.support.slurm_cluster import Cluster
from tests.support.slurm_runs import AS_STEPS, SlurmSite, ranks_once, seconds_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

CONFIG = REPOSITORY / "configs" / "ppo-with-command.yaml"
PROGRAM = REPOSITORY / "tests" / "support" / "fake_command.py"


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, sums: None) -> Iterator[SlurmSite]:
    yield SlurmSite(tmp_path_factory.mktemp("commands"), cluster, stand_ins=True)
    cluster.drain()


def programs(script: str) -> list[psutil.Process]:
    """Processes whose program is this script."""
    found = []
    for process in psutil.process_iter():
        try:
            if len(words := process.cmdline()) > 1 and words[1].endswith(script):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def test_commands_are_steps_with_gpus_of_their_own_and_end_the_job_when_they_die(site: SlurmSite) -> None:
    pair = {
        "command": ["{python}", str(PROGRAM), "{run_folder}", "tells", "{first_address}:{first_port}"],
        **{"nodes": 2, "gpus_per_rank": 1, "memory_gib_per_rank": 0.3},
    }
    real = site.submit(
        "with commands",
        [
            *(*AS_STEPS, "slurm.gpus_per_node=3", "slurm.container_prefix=[env, CONTAINED=yes]"),
            *("commands.judge.memory_gib_per_rank=0.3", f"commands.pair={json.dumps(pair)}"),
        ],
        config=CONFIG,
    )
    ranks = ranks_once(real, 7)
    published = real.run.attempt(1).endpoints_json
    ready = {"judge", "pair"}
    seconds_until(lambda: published.exists() and ready <= json.loads(published.read_text()).keys())
    told = [real.run.path / f"told.pair.{rank}" for rank in (0, 1)]
    seconds_until(lambda: all(path.exists() for path in told))
    (judge,) = programs("servers/judge.py")
    assert judge.environ()["CONTAINED"] == "yes"
    wrapper = psutil.Process(judge.ppid())
    assert wrapper.cmdline()[1:] == ["-m", "hpcflow.job.command_role", "judge", "env", "CONTAINED=yes"]
    assert "CONTAINED" not in wrapper.environ()

    places = {(rank.node, gpu) for rank in ranks.values() for gpu in rank.gpus}
    (first, *_), (second, *_) = meeting = [json.loads(path.read_text()) for path in told]
    assert first == second
    for _, environ, _ in meeting:
        place = environ["SLURMD_NODENAME"], environ["CUDA_VISIBLE_DEVICES"]
        assert place[1]
        assert place not in places
        places.add(place)
        assert (environ["WORLD_SIZE"], environ["MASTER_PORT"]) == ("2", first[0].rpartition(":")[2])
    assert len({environ["SLURMD_NODENAME"] for _, environ, _ in meeting}) == 2

    judge.kill()
    assert seconds_until(lambda: not real.living()) < 5
    report = real.ended()
    assert (report.outcome, report.role, report.cause, report.signal) == ("failed", "judge", "killed", 9)
    assert report.host in {"node1", "node2", "node3", "node4"}
