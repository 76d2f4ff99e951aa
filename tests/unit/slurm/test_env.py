"""Variables of Slurm: which leak, which stay, and what they grant."""

from __future__ import annotations

import pytest

from hpcflow.errors import ClusterError, UserError
from hpcflow.slurm.env import Allocation, granted_gpus, step_environment, submission_environment

# What stays of a caller's environment, whatever is in the values.
OWN = {
    **{"PATH": "/bin", "HOME": "/home/x", "http_proxy": "x", "fooBar": "1", "X": "a b,\"c\"\n'd'=\u00e9"},
    **{"SLURM_CONF": "/etc/slurm.conf", "SLURM_CLUSTERS": "one", "SLURM_CONF_SERVER": "ctl"},
    **{"SBATCH_ACCOUNT": "lab", "SBATCH_PARTITION": "main", "SBATCH_QOS": "high", "SBATCH_TIMELIMIT": "10"},
    **{"SBATCH_CONSTRAINT": "h200", "SBATCH_RESERVATION": "r", "NCCL_DEBUG": "INFO", "RANKING": "1"},
}
# What a batch script of two nodes had on a real cluster.
BATCH = {
    **{
        "SLURMD_NODENAME": "node1",
        "SLURM_CLUSTER_NAME": "c",
        "SLURM_CPUS_ON_NODE": "4",
        "SLURM_GPUS_ON_NODE": "4",
    },
    **{
        "SLURM_GPUS_PER_NODE": "4",
        "SLURM_GTIDS": "0",
        "SLURM_JOBID": "36",
        "SLURM_JOB_CPUS_PER_NODE": "4(x2)",
    },
    **{"SLURM_JOB_GPUS": "0,1,2,3", "SLURM_JOB_ID": "36", "SLURM_JOB_NODELIST": "node[1-2]"},
    **{"SLURM_JOB_NUM_NODES": "2", "SLURM_MEM_PER_NODE": "2000", "SLURM_NNODES": "2", "SLURM_NODEID": "0"},
    **{"SLURM_NODELIST": "node[1-2]", "SLURM_NPROCS": "8", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4"},
    **{"SLURM_PROCID": "0", "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_TASK_PID": "25733"},
    "SLURM_WORKING_CLUSTER": "c:127.0.0.1:27100:9728:109",
}
# Of a hetjob: the names that are set for each component.
HET = {
    **{"SLURM_HET_SIZE": "2", "SLURM_JOB_ID": "37", "SLURM_JOB_ID_HET_GROUP_0": "37"},
    **{
        "SLURM_JOB_ID_HET_GROUP_1": "38",
        "SLURM_JOB_NODELIST": "node1",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "node1",
    },
    **{"SLURM_JOB_NODELIST_HET_GROUP_1": "node[2-3]", "SLURM_JOB_NODELIST_PACK_GROUP_1": "node[2-3]"},
}
HET_DEFAULTS = {
    f"SLURM_{name}_{kind}_GROUP_1": "2"
    for name in ("GPUS_PER_NODE", "MEM_PER_NODE", "NTASKS", "NTASKS_PER_NODE", "NPROCS", "CPUS_PER_TASK")
    for kind in ("HET", "PACK")
}
DEVICES = {
    name: "2,3"
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
}


def test_what_a_person_set_reaches_sbatch_unchanged() -> None:
    assert submission_environment(OWN) == OWN


@pytest.mark.parametrize(
    "name",
    [
        *BATCH,
        *HET,
        *HET_DEFAULTS,
        *("SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_STEP_ID", "SLURM_EXPORT_ENV", "SRUN_DEBUG"),
        *("SBATCH_CPU_BIND", "SBATCH_MEM_BIND_TYPE", "PMI_RANK", "PMIX_RANK", "PMIX_SERVER_URI2"),
        *("OMPI_COMM_WORLD_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_RUN_ID", "SLURM_RESTART_COUNT"),
    ],
)
def test_a_surrounding_job_does_not_leak_into_a_submission(name: str) -> None:
    assert submission_environment({**OWN, name: "1"}) == OWN


@pytest.mark.parametrize(
    "name",
    [
        *("SBATCH_WAIT", "SBATCH_ARRAY_INX", "SBATCH_EXPORT", "SBATCH_OUTPUT", "SBATCH_GPUS", "SBATCH_GRES"),
        *(
            "SBATCH_GPUS_PER_NODE",
            "SBATCH_MEM_PER_NODE",
            "SBATCH_JOB_NAME",
            "SBATCH_NO_REQUEUE",
            "SBATCH_SIGNAL",
        ),
        *("SBATCH_OPEN_MODE", "SBATCH_ERROR", "SBATCH_NTASKS_PER_GPU", "SBATCH_REQUEUE", "SBATCH_GPU_BIND"),
    ],
)
def test_a_default_that_would_undo_the_plan_does_not_reach_sbatch(name: str) -> None:
    assert submission_environment({**OWN, name: "1"}) == OWN


def test_a_persons_default_gives_way_to_what_the_script_states() -> None:
    left = submission_environment(OWN, stated=["partition", "time", "nodelist"])
    assert set(OWN) - set(left) == {"SBATCH_PARTITION", "SBATCH_TIMELIMIT"}


def test_devices_of_a_surrounding_job_leak_but_a_persons_own_do_not() -> None:
    assert submission_environment({**OWN, **DEVICES}) == {**OWN, **DEVICES}
    assert submission_environment({**OWN, **DEVICES, "SLURM_JOB_ID": "1"}) == OWN


@pytest.mark.parametrize(
    "name",
    [
        *(
            "SLURM_GPUS_PER_NODE",
            "SLURM_NTASKS",
            "SLURM_NPROCS",
            "SLURM_NTASKS_PER_NODE",
            "SLURM_TASKS_PER_NODE",
        ),
        *(
            "SLURM_MEM_PER_NODE",
            "SLURM_MEM_PER_CPU",
            "SLURM_MEM_PER_GPU",
            "SLURM_CPUS_PER_TASK",
            "SLURM_GPUS",
        ),
        *(
            "SLURM_CPUS_PER_GPU",
            "SLURM_TRES_PER_TASK",
            "SLURM_CPU_BIND",
            "SLURM_CPU_BIND_TYPE",
            "SLURM_DISTRIBUTION",
        ),
        *("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_EXPORT_ENV", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"),
        *("SLURM_KILL_BAD_EXIT", "SLURM_OVERLAP", "SLURM_EXACT", "SLURM_WHOLE", "SRUN_CPUS_PER_TASK"),
        *HET_DEFAULTS,
        *DEVICES,
    ],
)
def test_what_the_batch_step_was_granted_is_no_default_of_its_steps(name: str) -> None:
    assert step_environment({**OWN, name: "1"}) == OWN


def test_a_step_still_knows_its_job() -> None:
    kept = step_environment({**OWN, **BATCH, **HET, "SLURM_RESTART_COUNT": "1"})
    needed = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_HET_SIZE", "SLURM_RESTART_COUNT")
    assert {*OWN, *needed, "SLURM_JOB_NODELIST_HET_GROUP_1", "SLURMD_NODENAME"} <= set(kept)


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, ""),
        ({"CUDA_VISIBLE_DEVICES": ""}, ""),
        ({"CUDA_VISIBLE_DEVICES": "", "SLURM_STEP_GPUS": "0"}, ""),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ""),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "0 1 2 3"),
        ({"CUDA_VISIBLE_DEVICES": "3,2"}, "3 2"),
        ({"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_STEP_GPUS": "2,3", "SLURM_JOB_GPUS": "0,1,2,3"}, "2 3"),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "2,3"}, "0 1"),
        ({"SLURM_STEP_GPUS": "2,3"}, "2 3"),
        ({"SLURM_STEP_GPUS": "0-2,5"}, "0 1 2 5"),
        ({"SLURM_JOB_GPUS": "0,1"}, ""),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f5c-1, GPU-9a"}, "GPU-8f5c-1 GPU-9a"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-GPU-8f5c/1/0"}, "MIG-GPU-8f5c/1/0"),
    ],
)
def test_gpus_are_those_that_slurm_granted(environ: dict[str, str], gpus: str) -> None:
    assert granted_gpus(environ) == tuple(gpus.split())


def test_an_allocation_of_a_plain_job() -> None:
    found = Allocation.from_environ({**BATCH, "SLURM_RESTART_COUNT": "2"})
    assert found == Allocation("36", 2, (("node1", "node2"),), "node1")


def test_copies_for_old_components_make_no_hetjob() -> None:
    found = Allocation.from_environ({**BATCH, "SLURM_JOB_NODELIST_PACK_GROUP_0": "node9"})
    assert found.nodes == (("node1", "node2"),)


def test_an_allocation_of_a_hetjob_has_all_components_in_their_order() -> None:
    assert Allocation.from_environ(HET) == Allocation("37", 0, (("node1",), ("node2", "node3")))


def test_an_allocation_of_twelve_components() -> None:
    lists = {f"SLURM_JOB_NODELIST_HET_GROUP_{index}": f"n{index}" for index in range(12)}
    found = Allocation.from_environ({"SLURM_HET_SIZE": "12", "SLURM_JOB_ID": "1", **lists})
    assert [nodes for (nodes,) in found.nodes] == [f"n{index}" for index in range(12)]


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_JOB_NODELIST_HET_GROUP_1"])
def test_what_is_missing_is_named(name: str) -> None:
    for environ in ({**HET, name: ""}, {key: value for key, value in HET.items() if key != name}):
        with pytest.raises(UserError, match=f"{name} is not set: this is no Slurm job"):
            Allocation.from_environ(environ)


def test_values_that_cannot_be_are_named() -> None:
    with pytest.raises(UserError, match="SLURM_RESTART_COUNT is no number: 'x'"):
        Allocation.from_environ({**BATCH, "SLURM_RESTART_COUNT": "x"})
    with pytest.raises(UserError, match="SLURM_JOB_NODELIST names no node"):
        Allocation.from_environ({**BATCH, "SLURM_JOB_NODELIST": "(null)"})
    with pytest.raises(ClusterError, match="node list that cannot be read"):
        Allocation.from_environ({**BATCH, "SLURM_JOB_NODELIST": "node[1-"})
