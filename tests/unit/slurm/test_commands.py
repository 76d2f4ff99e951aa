"""Running a command: real processes, which are not Slurm's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcflow.errors import ClusterError
from hpcflow.slurm.commands import query_environment, run_here, run_in


def test_a_command_is_run_in_english_with_nothing_on_its_standard_input() -> None:
    answer = run_here(["sh", "-c", 'cat; echo "$LC_ALL"; echo no >&2; exit 3'], 20)
    assert (answer.code, answer.stdout, answer.stderr) == (3, "C\n", "no\n")


def test_a_command_that_takes_too_long_is_ended_and_what_it_said_is_kept() -> None:
    answer = run_here(["sh", "-c", "echo banner; exec sleep 60"], 0.5)
    assert answer.code is None
    assert answer.stdout in ("", "banner\n")


def test_a_command_that_is_missing_is_a_fault_of_the_cluster(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="no_such_squeue cannot be run") as caught:
        run_here(["no_such_squeue"], 5)
    assert caught.value.exit_code == 4


def test_names_that_are_no_text_survive() -> None:
    answer = run_here(["printf", "a\\377b"], 20)
    assert answer.stdout.encode(errors="surrogateescape") == b"a\xffb"


def test_an_environment_is_passed_on_exactly() -> None:
    values = {"PATH": "/usr/bin:/bin", "X": "a b,\"c\"\n'd' =\u00e9"}
    assert run_in(values)(["sh", "-c", 'printf %s "$X"'], 20).stdout == values["X"]


def test_a_persons_taste_never_changes_an_answer() -> None:
    taste = {
        **{
            "SQUEUE_STATES": "PENDING",
            "SQUEUE_FORMAT": "%i",
            "SQUEUE_PARTITION": "other",
            "SINFO_FORMAT": "%N",
        },
        **{"SCANCEL_INTERACTIVE": "1", "SCONTROL_ALL": "1", "SLURM_TIME_FORMAT": "relative"},
        "SLURM_WORKING_CLUSTER": "other:10.0.0.1:6817:9728:109",
    }
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_CLUSTERS": "one", "PATH": "/bin", "LC_ALL": "de_DE"}
    assert query_environment({**taste, **kept}) == {**kept, "LC_ALL": "C"}
