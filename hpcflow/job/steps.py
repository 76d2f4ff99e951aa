"""Job steps of a plan as `srun` command lines: pure functions of the plan and of the nodes that were granted.

One task per node, a node agent, which starts the step's ranks there. CPUs, memory and GPUs are stated on
every step: whatever is left out, Slurm takes from the whole job, and the next step waits for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcflow.errors import UserError
from hpcflow.job.verdict import Member
from hpcflow.plan.plan import JobStep, Plan

AGENT = ("-m", "hpcflow.job.node_agent")
# What tells an agent its step, and the names of the step's nodes in the plan's order.
STEP, STEP_NODES = "HPCFLOW_STEP", "HPCFLOW_STEP_NODES"

# Names of nodes by their number in the plan.
Hosts = Mapping[int, str]


def member_of(step: JobStep) -> Member:
    """The step's `srun` among the processes of an attempt; also names its log."""
    return Member("_".join(("step", *step.roles)), 0)


def hosts_of(plan: Plan, granted: Sequence[Sequence[str]]) -> dict[int, str]:
    """Names of the plan's nodes; `granted` are node names by component, in Slurm's order.

    Raises:
        UserError: the job has fewer nodes or other components than the plan.
    """
    has = [len(names) for names in granted]
    needs = [len(component.nodes) for component in plan.components]
    if len(has) != len(needs) or any(have < need for have, need in zip(has, needs, strict=True)):
        raise UserError(
            f"the job has {_nodes(has)}, and the plan takes {_nodes(needs)}",
            hint="the batch script and the spec must agree: see  hpcflow plan",
        )
    found: dict[int, str] = {}
    for component, names in zip(plan.components, granted, strict=True):
        found |= dict(zip(component.nodes, names, strict=False))
    return found


def _nodes(counts: Sequence[int]) -> str:
    return f"{' + '.join(map(str, counts))} nodes in {len(counts)} component{'s' * (len(counts) > 1)}"


def srun(step: JobStep, plan: Plan, hosts: Hosts, *, python: str) -> list[str]:
    """The command line of one step."""
    nodes, component = len(step.nodes), plan.components[step.component]
    gpus = step.gpus_per_node
    if gpus and component.gpus_are_numbered:
        # Slurm would choose which GPUs the step gets: it gets all of them, and its agents take theirs.
        gpus = component.gpus_per_node
    return [
        *("srun", "--exact", "--mpi=none", "--input=none", "--export=ALL"),
        *(["--overlap"] if gpus and component.gpus_are_numbered else []),
        # Without a number a heterogeneous job's srun is about its first component.
        *([f"--het-group={step.component}"] if len(plan.components) > 1 else []),
        f"--job-name={step.name}",
        f"--nodes={nodes}",
        f"--nodelist={','.join(hosts[node] for node in step.nodes)}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={step.cpus_per_node}",
        f"--mem={step.memory_mib_per_node}M",
        f"--gpus-per-node={gpus}" if gpus else "--gres=none",
        # A step that lost one node is ended whole, by the supervisor, which then knows why.
        *("--kill-on-bad-exit=0", "--wait=0"),
        python,
        *AGENT,
    ]
