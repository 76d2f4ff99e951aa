"""What sbatch of 22.05 wrote when it refused, and what of it is no clear refusal."""

from __future__ import annotations

import pytest

from hpcflow.slurm.partitions import parse_partitions
from hpcflow.slurm.refusals import job_id_of, refusal_in

FAILED = "sbatch: error: Batch job submission failed: "
PARTITIONS = parse_partitions(
    "main|main*|up|1-00:00:00|1-infinite|idle|16|1|8000|node[1-4]|h200,rack1|gpu:h200:4\n"
    "short|short|up|10:00|1-infinite|idle|16|1|8000|node[1-2]|h200|gpu:h200:4\n"
    "off|off|down|infinite|1-infinite|down|8|1|4000|tux1|(null)|(null)\n"
)
# Text of sbatch; a key to change; a valid value that is shown.
CASES = [
    (
        f"sbatch: error: invalid partition specified: nope\n{FAILED}Invalid partition name specified",
        ("slurm.partition", "main, short, off"),
    ),
    (
        "sbatch: error: Problem talking to database\nsbatch: error: 'foo' can't be reached now, or it is an "
        "invalid entry for --cluster.  Use 'sacctmgr list clusters' to see available clusters.",
        ("slurm.options.clusters", "SBATCH_CLUSTERS"),
    ),
    ("sbatch: error: invalid number of nodes (-N 3-2)", ("slurm.options.nodelist", "more nodes")),
    (f"{FAILED}Invalid account or account/partition combination specified", ("slurm.account", "sacctmgr")),
    (f"{FAILED}Invalid qos specification", ("slurm.qos", "sacctmgr")),
    ("sbatch: error: Invalid generic resource (gres) specification", ("gpu_type", "h200 (4 a node) in main")),
    (f"{FAILED}Invalid Trackable RESource (TRES) specification", ("gpu_type", "h200 (4 a node) in short")),
    (f"{FAILED}Invalid feature specification", ("slurm.constraint", "h200, rack1")),
    (
        f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)",
        ("slurm.time_minutes", "at most 1440 in main, at most 10 in short"),
    ),
    (f"{FAILED}Node count specification invalid", ("roles.ROLE.nodes", "main: 4 nodes")),
    (
        f"{FAILED}Requested node configuration is not available",
        ("roles.ROLE.gpus_per_node", "16 cpus, 8000 MiB, 4 GPUs"),
    ),
    (
        "sbatch: error: Memory specification can not be satisfied\n"
        f"{FAILED}Requested node configuration is not available",
        ("slurm.resources", "no node has as much memory"),
    ),
    (
        "sbatch: error: CPU count per node can not be satisfied\n"
        f"{FAILED}Requested node configuration is not available",
        ("slurm.resources", "no node has as many cores"),
    ),
    (
        f"{FAILED}Required partition not available (inactive or drain)",
        ("slurm.partition", "valid: main, short"),
    ),
    (
        "sbatch: error: AssocMaxSubmitJobLimit\n"
        f"{FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        ("slurm.account", "a limit of your account or QOS"),
    ),
    (
        f"{FAILED}Pathname of a file, directory or other parameter too long",
        ("slurm.environment", "max_script_size"),
    ),
    (f"{FAILED}Unable to contact slurm controller (connect failure)", ("scontrol ping", "SLURM_CONF")),
    (
        "sbatch: error: s_p_parse_file: cannot stat file /nope: No such file or directory, retrying in 1sec\n"
        "sbatch: fatal: Unable to process configuration file",
        ("SLURM_CONF", "configuration cannot be read"),
    ),
    (f"{FAILED}Requested reservation is invalid", ("slurm.options.reservation", "scontrol show reservation")),
    (f"{FAILED}Invalid license specification", ("slurm.options.licenses", "scontrol show licenses")),
    (
        "sbatch: unrecognized option '--nosuchoption'\nTry \"sbatch --help\" for more information",
        ("slurm.options", "sbatch --help"),
    ),
    ("sbatch: error: Invalid --signal specification", ("slurm.options", "does not take an option")),
    (f"{FAILED}Protocol authentication error", ("munge", "who asks")),
]


@pytest.mark.parametrize(("text", "shown"), CASES)
def test_a_refusal_keeps_slurms_words_and_says_what_to_change(text: str, shown: tuple[str, str]) -> None:
    refusal = refusal_in(text, PARTITIONS)
    assert refusal is not None
    assert refusal.message == text
    for part in shown:
        assert part in refusal.hint


def test_a_wrappers_banner_does_not_hide_a_refusal() -> None:
    text = f"*** welcome to the cluster ***\n{FAILED}Invalid qos specification\n*** bye ***"
    refusal = refusal_in(text)
    assert refusal is not None
    assert refusal.keys == ("slurm.qos",)
    assert refusal.message == text


def test_values_are_left_out_where_they_are_not_known() -> None:
    text = f"{FAILED}Invalid partition name specified"
    refusal = refusal_in(text)
    assert refusal is not None
    assert refusal.hint == "there is no such partition; change slurm.partition"


def test_an_unknown_refusal_is_still_one() -> None:
    refusal = refusal_in(f"sbatch: error: our site wants a project\n{FAILED}Unspecified error")
    assert refusal is not None
    assert "our site wants a project" in refusal.message


@pytest.mark.parametrize(
    "text",
    [
        f"{FAILED}Socket timed out on send/recv operation",
        f"{FAILED}Zero Bytes were transmitted or received",
        f"{FAILED}Unable to contact slurm controller (receive failure)",
        f"{FAILED}Unable to contact slurm controller (send failure)",
        f"{FAILED}Connection reset by peer",
        f"{FAILED}Connection timed out",
        "sbatch did not answer within 20 s\nUnable to contact slurm controller (connect failure)",
        "sbatch was ended by signal 9\nsbatch: error: Invalid account",
        "Killed",
        "",
        "sbatch: warning: something",
        "*** welcome to the cluster ***",
    ],
)
def test_an_unclear_answer_is_no_refusal(text: str) -> None:
    assert refusal_in(text, PARTITIONS) is None


@pytest.mark.parametrize(
    ("stdout", "job_id"),
    [
        ("4711\n", "4711"),
        ("4711;cluster-b\n", "4711"),
        ("Submitted batch job 4711\n", "4711"),
        ("Submitted batch job 4711 on cluster one\n", "4711"),
        ("*** 100 GPUs free ***\n2026-12-01\nSubmitted batch job 4711\nhave fun\n", "4711"),
        ("banner of 2026\n\n4711\n\nbye 12 \n", "4711"),
        ("12\nSubmitted batch job 4711\n", "4711"),
        ("4711\n4711\n", "4711"),
        ("", None),
        ("welcome, you have 12 jobs\n", None),
        ("12\n4711\n", None),
        ("Submitted batch job 1\nSubmitted batch job 2\n", None),
        ("job 4711 submitted\n", None),
    ],
)
def test_the_id_is_found_among_banners_or_not_at_all(stdout: str, job_id: str | None) -> None:
    assert job_id_of(stdout) == job_id
