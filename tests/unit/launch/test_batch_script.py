from __future__ import annotations

import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest

from hpcflow.launch.batch_script import log_pattern, render, stated, with_defaults
from hpcflow.plan.build import build
from hpcflow.rundir import RunDir
from hpcflow.spec.load import load
from hpcflow.spec.run import RunSpec
from tests.support.golden import check_golden
from tests.support.specs import SPEC, tiny_spec, write_spec

TEMPLATE = Path(__file__).resolve().parents[3] / "sbatch" / "job.sbatch.j2"
PYTHON = "/opt/my env/bin/python"

SLURM = r"""
slurm:
  partition: "a,b"
  account: "it's \"mine\""
  qos: high
  constraint: "h200&nvlink"
  time_minutes: 90
  signal_lead_s: 300
  gpus_per_node: 8
  gpu_type: h200
  resources:
    rollout: {cpus_per_rank: 4, memory_gib_per_rank: 20.5}
  options:
    mail-user: someone@example.org
    exclusive: true
    nice: 5
    hold: false
    comment: 'back\slash # hash'
  environment:
    GREETING: "it's \"$HOME\" `id`\nnext line"
  nccl:
    NCCL_DEBUG: WARN
  modules: [cuda/13.0, "odd name;"]
  container_prefix: [apptainer, exec, --nv, "my image.sif"]
"""


def full_spec(folder: Path) -> RunSpec:
    """Every key of the slurm table, and a name that needs quotes everywhere."""
    name = 'name: "it\'s a \\"run\\", n\u00e9 100%"'
    text = SPEC.replace("name: tiny", name) + SLURM
    overrides = ["roles.rollout.gpus_per_node=2", "roles.rollout.tensor_parallel=2"]
    return load(write_spec(folder, text), overrides)


def het_spec(folder: Path) -> RunSpec:
    """The rollout on nodes of another kind, without a partition of its own."""
    kind = ["slurm.resources.rollout.constraint=l40s", "slurm.resources.rollout.gpu_type=l40s"]
    return load(write_spec(folder, SPEC + SLURM), ["roles.rollout.gpus_per_node=1", *kind])


def rendered(spec: RunSpec) -> str:
    run = RunDir(Path("/data/my runs") / spec.name)
    return render(spec, build(spec), run, withdrawn=run.submitit / "withdrawn_1f", python=PYTHON)


def test_the_script_is_the_golden_one(tmp_path: Path) -> None:
    check_golden("job.sbatch", rendered(full_spec(tmp_path)))


def test_a_component_of_its_own_for_each_kind_of_node(tmp_path: Path) -> None:
    check_golden("hetjob.sbatch", rendered(het_spec(tmp_path)))


def test_a_plain_spec_asks_for_nothing_that_it_does_not_name(tmp_path: Path) -> None:
    script = rendered(tiny_spec(tmp_path))
    for word in ("partition", "account", "qos", "constraint", "gpus", "module", "export"):
        assert f"--{word}" not in script
        assert f"{word} " not in script
    assert "#SBATCH --signal=B:USR2@120\n" in script
    assert script.endswith(f"exec {shlex.quote(PYTHON)} -m hpcflow.job '/data/my runs/tiny' slurm\n")


def test_bash_finds_nothing_to_say_about_the_script(tmp_path: Path) -> None:
    shellcheck = Path(sysconfig.get_path("scripts")) / "shellcheck"
    for number, spec in enumerate((full_spec(tmp_path), het_spec(tmp_path), tiny_spec(tmp_path))):
        path = tmp_path / f"{number}.sh"
        path.write_text(rendered(spec), encoding="utf-8")
        found = subprocess.run([shellcheck, path], capture_output=True, text=True, timeout=60)
        assert (found.returncode, found.stdout) == (0, "")


def test_bash_hands_over_what_the_user_wrote(tmp_path: Path) -> None:
    script = rendered(full_spec(tmp_path)).replace("\nexec ", "\nprintf '%s\\0' \"$GREETING\" ")
    script = script.replace("\nmodule load", "\n: module load")
    environment = {"HOME": "/root"}
    done = subprocess.run(
        ["/bin/bash"], input=script, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\0") == [
        'it\'s "$HOME" `id`\nnext line',
        *(PYTHON, "-m", "hpcflow.job"),
        '/data/my runs/it\'s a "run", n\u00e9 100%',
        "slurm",
        "",
    ]


def test_a_withdrawn_submission_ends_before_it_does_anything(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    for mark, code in ((tmp_path / "it's missing", 0), (tmp_path, 1)):
        script = render(spec, build(spec), RunDir(tmp_path), withdrawn=mark, python="true")
        done = subprocess.run(["/bin/bash"], input=script, text=True, timeout=60, check=False)
        assert done.returncode == code


@pytest.mark.parametrize(
    ("path", "pattern"),
    [("/r/100%j", "/r/100%%j"), ("/r/a\\b", "/r/a\\\\b"), ("/r/%\\x", "/r/%\\\\x"), ("/r/a b", "/r/a b")],
)
def test_a_log_path_has_no_fields(path: str, pattern: str) -> None:
    assert log_pattern(Path(path)) == pattern


def test_a_persons_defaults_count_where_the_spec_names_nothing(tmp_path: Path) -> None:
    kind = ["slurm.resources.rollout.partition=long", "roles.rollout.gpus_per_node=1"]
    spec = load(write_spec(tmp_path, SPEC), [*kind, "slurm.gpus_per_node=8"])
    plan = build(spec)
    mine = with_defaults(plan, {"SBATCH_PARTITION": "mine", "SBATCH_CONSTRAINT": "fast"})
    assert [component.partition for component in mine.components] == ["mine", "long"]
    assert [component.constraint for component in mine.components] == ["fast", "fast"]
    assert with_defaults(plan, {"SBATCH_PARTITION": ""}) == plan


def test_variables_of_what_the_script_states_are_not_to_count(tmp_path: Path) -> None:
    assert stated(tiny_spec(tmp_path).slurm) == {"time", "partition", "constraint"}
    named = stated(full_spec(tmp_path).slurm)
    assert {"account", "qos", "exclusive", "time"} <= named


def test_the_template_stays_small() -> None:
    assert len(TEMPLATE.read_text(encoding="utf-8").splitlines()) < 60
