"""What srun and slurmstepd of 22.05 wrote about steps that failed."""

from __future__ import annotations

import pytest

from hpcflow.slurm.srun_messages import failure_in

CASES = {
    "a task failed": (
        "srun: error: node2: task 1: Exited with exit code 5\n",
        ("node2", "node2: task 1: Exited with exit code 5"),
    ),
    "a task was killed": (
        "srun: error: node2: task 1: Killed\nsrun: Force Terminated StepId=36.2\n",
        ("node2", "node2: task 1: Killed"),
    ),
    "the first of those that died because of it": (
        "srun: error: node2: task 1: Exited with exit code 4\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=36.3\n"
        "slurmstepd-node1: error: *** STEP 36.3 ON node1 CANCELLED AT 2026-12-01T13:24:11 ***\n"
        "srun: error: node1: task 0: Terminated\n"
        "srun: Force Terminated StepId=36.3\n",
        ("node2", "node2: task 1: Exited with exit code 4"),
    ),
    "the others are told first": (
        "srun: error: node1: task 0: Terminated\nsrun: error: node2: task 1: Exited with exit code 4\n",
        ("node2", "node2: task 1: Exited with exit code 4"),
    ),
    "a node failed": (
        "srun: error: Node failure on node4\n"
        "srun: error: node2: task 1: Killed\n"
        "srun: error: node1: task 0: Killed\n",
        ("node4", "Node failure on node4"),
    ),
    "no launch on a node": (
        "srun: error: Task launch for StepId=7.0 failed on node node3: Communication connection failure\n"
        "srun: error: Application launch failed: Communication connection failure\n"
        "srun: Job step aborted: Waiting up to 7 seconds for job step to finish.\n",
        ("node3", "Task launch for StepId=7.0 failed on node node3: Communication connection failure"),
    ),
    "no interpreter": (
        "srun: error: node1: task 0: Exited with exit code 2\n"
        "slurmstepd-node1: error: execve(): /nonexistent/prog: No such file or directory\n",
        ("node1", "execve(): /nonexistent/prog: No such file or directory"),
    ),
    "memory": (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=9.0. Some of them have been OOM Killed.\n"
        "srun: error: gpu-07: task 3: Out Of Memory\n",
        ("gpu-07", "gpu-07: task 3: Out Of Memory"),
    ),
    "more GPUs than the job has": (
        "srun: error: Step requested gres_per_node=gpu:9 is more than the job's gres_per_node=gpu:4\n"
        "srun: error: Unable to create step for job 36: Invalid generic resource (gres) specification\n",
        ("", "Step requested gres_per_node=gpu:9 is more than the job's gres_per_node=gpu:4"),
    ),
    "more memory than the job has": (
        "srun: error: Unable to create step for job 36: Memory required by task is not available\n",
        ("", "Unable to create step for job 36: Memory required by task is not available"),
    ),
    "a TRES": (
        "srun: error: Invalid Trackable RESource (TRES) specification\n",
        ("", "Invalid Trackable RESource (TRES) specification"),
    ),
    "nodes": (
        "srun: error: Only allocated 2 nodes asked for 3\n",
        ("", "Only allocated 2 nodes asked for 3"),
    ),
    "components": (
        "srun: error: Requested het-group offset exceeds highest hetjob index (1 > 0)\n",
        ("", "Requested het-group offset exceeds highest hetjob index (1 > 0)"),
    ),
    "several tasks": (
        "srun: error: node[1-2]: tasks 0-3,7: Exited with exit code 1\n",
        ("node[1-2]", "node[1-2]: tasks 0-3,7: Exited with exit code 1"),
    ),
    "time": (
        "slurmstepd-n1: error: *** STEP 5.1 ON n1 CANCELLED AT 2026-12-01T13:24:11 DUE TO TIME LIMIT ***\n"
        "srun: error: n1: task 0: Terminated\n",
        ("n1", "*** STEP 5.1 ON n1 CANCELLED AT 2026-12-01T13:24:11 DUE TO TIME LIMIT ***"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_node_and_cause_are_found(case: str) -> None:
    output, (node, message) = CASES[case]
    found = failure_in(f"output of a rank\n{output}more of it\n")
    assert found is not None
    assert (found.node, found.message, found.waiting) == (node, message, False)


def test_a_step_that_waits_has_not_failed() -> None:
    waits = "srun: Job 36 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
    found = failure_in(waits)
    assert found is not None
    assert found.waiting
    assert "waits for" in found.hint
    assert failure_in(f"{waits}srun: Step created for job 36\n") is None
    assert failure_in(f"{waits}srun: Step created for StepId=36.1\n") is None


def test_a_failure_is_told_before_an_earlier_wait() -> None:
    found = failure_in(
        "srun: Job 39 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
        "srun: Cancelled pending job step with signal 15\n"
        "srun: error: Unable to create step for job 39: Job/step already completing or completed\n"
    )
    assert found is not None
    assert found.message.startswith("Unable to create step for job 39")


@pytest.mark.parametrize(
    "output",
    [
        "",
        "node2: task 1: Killed\n",
        "error: Node failure on node4\n",
        "my srun: error: Node failure on node4\n",
        "srun: something new\n",
    ],
)
def test_what_srun_did_not_say_is_nothing(output: str) -> None:
    assert failure_in(output) is None
