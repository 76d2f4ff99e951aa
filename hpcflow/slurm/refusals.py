"""What sbatch's answer means: the id of the job, what was refused and what to change, or that it is unclear.

Slurm's own words are kept as they are and are never replaced by ours. An answer that does not clearly refuse
is ambiguous: the job may exist, so nobody may submit again before having looked for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpcflow.slurm.partitions import Partition

Partitions = Mapping[str, Partition]


@dataclass(frozen=True)
class Refusal:
    """`message` is all that sbatch wrote, `problem` what is wrong, `keys` are keys of the spec to change.

    `valid` lists what may be given, where that is known.
    """

    message: str
    problem: str
    keys: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    advice: str = ""

    @property
    def hint(self) -> str:
        """What was wrong and what to do, in one line."""
        change = f"change {' or '.join(self.keys)}" if self.keys else ""
        valid = f"valid: {', '.join(self.valid)}" if self.valid else ""
        return "; ".join(part for part in (self.problem, change, valid, self.advice) if part)


def _no_values(_: Partitions) -> tuple[str, ...]:
    return ()


def _names(partitions: Partitions) -> tuple[str, ...]:
    return tuple(partitions)


def _features(partitions: Partitions) -> tuple[str, ...]:
    return tuple(sorted({name for partition in partitions.values() for name in partition.features}))


def _gpus(partitions: Partitions) -> tuple[str, ...]:
    """`h200 (4 a node) in main`, for every partition that has GPUs."""
    found = []
    for partition in partitions.values():
        most: dict[str, int] = {}
        for group in partition.groups:
            for name, count in group.gpus.items():
                most[name] = max(count, most.get(name, 0))
        found += [
            f"{name or 'gpu'} ({count} a node) in {partition.name}" for name, count in sorted(most.items())
        ]
    return tuple(found)


def _sizes(partitions: Partitions) -> tuple[str, ...]:
    """`main: 4 nodes`, each with the largest of its kinds."""
    found = []
    for partition in partitions.values():
        if not partition.groups:
            continue
        cpus = max(group.cpus for group in partition.groups)
        memory = max(group.memory_mib for group in partition.groups)
        gpus = max(group.gpus_per_node for group in partition.groups)
        found.append(
            f"{partition.name}: {len(partition.nodes)} nodes of up to {cpus} cpus, {memory} MiB, {gpus} GPUs"
        )
    return tuple(found)


def _times(partitions: Partitions) -> tuple[str, ...]:
    return tuple(
        f"at most {partition.max_minutes} in {partition.name}"
        for partition in partitions.values()
        if partition.max_minutes is not None
    )


@dataclass(frozen=True)
class _Known:
    """One way in which sbatch refuses; `text` is looked for in what it wrote."""

    text: str
    problem: str
    keys: tuple[str, ...] = ()
    advice: str = ""
    valid: Callable[[Partitions], tuple[str, ...]] = _no_values


_SIZE = ("slurm.resources", "slurm.driver", "slurm.partition")
_GPUS_ASKED = ("roles.ROLE.gpus_per_node", "slurm.gpus_per_node", "slurm.gpu_type")
_ASK_SLURM = "`sacctmgr show associations user=$USER` lists yours"

# The connection broke, or sbatch ended, after the request may have been taken.
_UNCLEAR = re.compile(
    r"did not answer|ended by signal|\b(?:Killed|Terminated)\b|"
    r"timed out|Connection reset|Broken pipe|Zero Bytes were transmitted"
    r"|\((?:send|receive|shutdown) failure\)|Communication (?:connection|send|receive|shutdown) failure"
    r"|Transport endpoint is not connected|Unexpected message received|Resource temporarily unavailable",
    re.IGNORECASE,
)
# The first that fits: details come before the sentence that ends every refusal.
_KNOWN = (
    _Known(
        r"Unable to contact slurm controller|Slurm backup controller in standby",
        "the controller cannot be reached",
        advice="`scontrol ping`; does SLURM_CONF name the right cluster?",
    ),
    _Known(
        r"Unable to process configuration file|s_p_parse_file|Could not establish a configuration source",
        "Slurm's configuration cannot be read",
        advice="does SLURM_CONF name a file that exists on this host?",
    ),
    _Known(
        r"munge|Protocol authentication error|Invalid authentication credential",
        "Slurm does not know who asks",
        advice="is munge running on this host, with the cluster's key and clock?",
    ),
    _Known(
        r"invalid partition|Invalid partition name",
        "there is no such partition",
        ("slurm.partition",),
        valid=_names,
    ),
    _Known(
        r"group not permitted to use this partition|not permitted to use this partition",
        "you may not use this partition",
        ("slurm.partition", "slurm.account"),
        valid=_names,
    ),
    _Known(
        r"Required partition not available|partition.*(?:inactive|drain)",
        "the partition takes no jobs now",
        ("slurm.partition",),
        valid=lambda partitions: tuple(name for name, partition in partitions.items() if partition.up),
    ),
    _Known(
        r"Invalid account",
        "the account is not valid, or not for this partition",
        ("slurm.account",),
        _ASK_SLURM,
    ),
    _Known(
        r"Invalid qos|QOS.*not (?:permitted|allowed)",
        "the QOS is not valid for you",
        ("slurm.qos",),
        _ASK_SLURM,
    ),
    _Known(
        r"time limit is invalid|Time limit exceeds|MaxWallDurationPerJob|QOSMaxWall",
        "the time is over a limit",
        ("slurm.time_minutes", "slurm.partition"),
        valid=_times,
    ),
    _Known(
        r"Invalid feature specification",
        "no node has this feature",
        ("slurm.constraint", "slurm.resources.ROLE.constraint"),
        valid=_features,
    ),
    _Known(
        r"Invalid generic resource|Invalid Trackable RESource|Invalid gres",
        "the cluster has no such GPUs",
        _GPUS_ASKED,
        valid=_gpus,
    ),
    _Known(r"Memory (?:specification|required)", "no node has as much memory", _SIZE, valid=_sizes),
    _Known(
        r"CPU count per node can not be satisfied|More processors requested than permitted",
        "no node has as many cores",
        _SIZE,
        valid=_sizes,
    ),
    _Known(
        r"Node count specification invalid|node count .* (?:exceeds|greater)|MaxNodePerJob|MaxNodesPerJob",
        "more nodes than the partition has or allows for one job",
        ("roles.ROLE.nodes", "slurm.partition"),
        valid=_sizes,
    ),
    _Known(
        r"SubmitJob\w*Limit|MaxSubmit|job submit limit|accounting/QOS policy|(?:QOS|Assoc)\w*Limit",
        "a limit of your account or QOS is reached",
        ("slurm.account", "slurm.qos"),
        "wait for your other jobs, or ask for less; `sacctmgr show qos` lists the limits",
    ),
    _Known(
        r"Requested node configuration is not available|Requested partition configuration not available",
        "no node of the partition is as asked (GPUs of this type and number, cores, memory)",
        (*_GPUS_ASKED, *_SIZE),
        valid=_sizes,
    ),
    _Known(
        r"reservation",
        "the reservation is not valid",
        ("slurm.options.reservation",),
        "`scontrol show reservation`",
    ),
    _Known(r"license", "the licences are not valid", ("slurm.options.licenses",), "`scontrol show licenses`"),
    _Known(
        r"invalid entry for --cluster",
        "there is no such cluster, or it cannot be reached",
        ("slurm.options.clusters",),
        "SBATCH_CLUSTERS of your environment counts, too",
    ),
    _Known(
        r"sbatch: error: invalid number of nodes",
        "slurm.options.nodelist names more nodes than the job takes",
        ("slurm.options.nodelist", "roles.ROLE.nodes"),
    ),
    _Known(r"Invalid node name", "there is no such node", ("slurm.options",), "`sinfo -N` lists the nodes"),
    _Known(
        r"Pathname of a file, directory or other parameter too long|Argument list too long",
        "the script, or the environment beside it, is larger than this site takes",
        ("slurm.environment",),
        "put large values into a file and give its path; `scontrol show config` says max_script_size",
    ),
    _Known(
        r"unrecognized option|invalid option|Invalid --\S+ specification|option requires an argument",
        "this Slurm does not take an option or its value",
        ("slurm.options",),
        "`sbatch --help` lists them",
    ),
    _Known(
        r"Unable to open file|This does not look like a batch script|Batch script is empty|DOS line breaks",
        "sbatch cannot use the script",
        advice="is the run folder on a file system that this host can read?",
    ),
    _Known(
        r"Access/permission denied|Invalid user id",
        "you may not submit here",
        ("slurm.account", "slurm.partition"),
    ),
    _Known(
        r"cli_filter|job_submit",
        "a filter of this site refused the job",
        advice="Slurm's message says what it wants",
    ),
)
_ANY_REFUSAL = re.compile(r"Batch job submission failed: \S|sbatch: error: Invalid\b|sbatch: fatal: ")

_SENTENCE = re.compile(r"Submitted batch job ([0-9]+)(?:\s+on cluster \S+)?\.?")
_PARSABLE = re.compile(r"([0-9]+)(?:;[A-Za-z0-9_.-]+)?")


def job_id_of(stdout: str) -> str | None:
    """Id of the job, out of `sbatch --parsable` or the plain sentence, among other lines of a wrapper.

    None where there is none, and where several lines could be it.
    """
    lines = [line.strip() for line in stdout.splitlines()]
    for pattern in (_SENTENCE, _PARSABLE):
        found = {match[1] for line in lines if (match := pattern.fullmatch(line))}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def refusal_in(message: str, partitions: Partitions | None = None) -> Refusal | None:
    """What sbatch refused, by all that it wrote; `partitions` (if known) give the valid values.

    None where it is no clear refusal: the job may exist. An sbatch whose time was up, or that was killed, has
    never clearly refused, whatever it wrote before.
    """
    if _UNCLEAR.search(message):
        return None
    for known in _KNOWN:
        if re.search(known.text, message, re.IGNORECASE):
            valid = known.valid(partitions or {})
            return Refusal(message.strip(), known.problem, known.keys, valid, known.advice)
    return Refusal(message.strip(), "Slurm refused the job") if _ANY_REFUSAL.search(message) else None
