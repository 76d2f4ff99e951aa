"""Where a private Slurm cluster keeps its files, and what its configuration says.

Texts and paths only: nothing here starts, ends or asks a process, and nothing is written outside the root
folder. Two forms: `small` is four nodes with a slurmd and four fake GPUs each, `big` a controller alone that
believes in 1,024 nodes, for plans and submissions at scale (its jobs are placed, but never run).
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

FORMS = ("small", "big")
SMALL_NODES = 4
SMALL_GPUS = 4
BIG_NODES = 1024
# A step's socket is ROOT/spool/node1/node1_JOB.STEP, and the kernel takes 107 bytes for the path of a socket.
LONGEST_ROOT = 68
# Slurm splits and expands values at blanks, commas, '#', '=', '%' and brackets.
PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/@+~-]+")
FOLDERS = ("dev", "etc", "log", "munge", "run", "spool")


class UserError(Exception):
    """What the caller must change first."""


@dataclass(frozen=True)
class Layout:
    """Paths of the cluster under `root`, which is absolute and without symbolic links."""

    root: Path

    @property
    def conf(self) -> Path:
        """What SLURM_CONF names: it selects this cluster."""
        return self.root / "etc" / "slurm.conf"

    @property
    def facts(self) -> Path:
        """Form, name, host and ports as JSON; written before the first daemon starts."""
        return self.root / "etc" / "cluster.json"

    @property
    def logs(self) -> Path:
        """A log per daemon, and what it wrote to its streams beside it."""
        return self.root / "log"

    @property
    def spool(self) -> Path:
        """State of the controller and of the nodes."""
        return self.root / "spool"

    @property
    def munge_key(self) -> Path:
        """The key of this cluster alone."""
        return self.root / "munge" / "key"

    @property
    def munge_socket(self) -> Path:
        """Where this cluster's munged listens."""
        return self.root / "munge" / "sock"

    @property
    def lock(self) -> Path:
        """Held while the cluster is brought up or down."""
        return self.root / "lock"

    @property
    def daemon_logs(self) -> tuple[str, ...]:
        """How the paths of the logs begin that only daemons of this cluster write."""
        return (f"{self.logs}/slurmctld.", f"{self.logs}/slurmd.")

    def devices(self, node: str) -> list[Path]:
        """The fake GPUs of a node."""
        return [self.root / "dev" / node / f"gpu{index}" for index in range(SMALL_GPUS)]

    def clear(self) -> None:
        """Remove what an earlier cluster left, and make the folders: slurmctld dies where one is missing."""
        for folder in FOLDERS:
            shutil.rmtree(self.root / folder, ignore_errors=True)
            (self.root / folder).mkdir(mode=0o755)
        for name in ("ctld", *nodes_with_daemon("small")):
            (self.spool / name).mkdir()


@dataclass(frozen=True)
class Facts:
    """What differs between two clusters of one form."""

    name: str
    form: str
    host: str
    user: str
    controller_port: int
    node_ports: tuple[int, ...]


def fault_of_root(root: Path) -> str | None:
    """Why Slurm cannot live in this folder, or None."""
    if not PLAIN_PATH.fullmatch(str(root)):
        return f"{root}: Slurm's configuration takes letters, digits and . _ / @ + ~ - in paths only"
    if len(str(root)) > LONGEST_ROOT:
        return f"{root}: {len(str(root))} characters, but sockets leave room for {LONGEST_ROOT} only"
    if root.exists() and not Layout(root).lock.is_file() and (not root.is_dir() or any(root.iterdir())):
        return f"{root}: neither an empty folder nor that of a cluster"
    return None


def nodes_with_daemon(form: str) -> list[str]:
    """Names of the nodes that have a slurmd."""
    return [f"node{number}" for number in range(1, SMALL_NODES + 1)] if form == "small" else []


def slurm_conf(layout: Layout, facts: Facts) -> str:
    """Text of slurm.conf: loopback only, requeue and preemption as quick as Slurm allows, no accounting."""
    return _GENERAL.format(
        root=layout.root, socket=layout.munge_socket, spool=layout.spool, logs=layout.logs, **vars(facts)
    ) + (_small_nodes(facts) if facts.form == "small" else _BIG_NODES + _partitions(f"big[1-{BIG_NODES}]"))


def gres_conf(layout: Layout, facts: Facts) -> str:
    """Text of gres.conf: only GPUs with a device file reach CUDA_VISIBLE_DEVICES."""
    return "".join(
        f"NodeName={node} Name=gpu Type=h200 File={layout.devices(node)[0].parent}/gpu[0-{SMALL_GPUS - 1}]\n"
        for node in nodes_with_daemon(facts.form)
    )


def _small_nodes(facts: Facts) -> str:
    lines = []
    for index, node in enumerate(nodes_with_daemon("small")):
        rack = "rack1" if index < SMALL_NODES // 2 else "rack2"
        lines.append(
            f"NodeName={node} NodeHostname={facts.host} NodeAddr=127.0.0.1 Port={facts.node_ports[index]}"
            " CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=8000"
            f" Gres=gpu:h200:{SMALL_GPUS} Features=h200,{rack} State=UNKNOWN\n"
        )
    return "".join(lines) + _partitions(f"node[1-{SMALL_NODES}]")


def _partitions(nodes: str) -> str:
    first_two = f"{nodes.partition('[')[0]}[1-2]"
    rows = (
        ("main", nodes, "Default=YES MaxTime=1-0 PriorityTier=10 PreemptMode=REQUEUE"),
        ("low", nodes, "MaxTime=1-0 PriorityTier=1 PreemptMode=REQUEUE GraceTime=20"),
        ("high", nodes, "MaxTime=1-0 PriorityTier=100 PreemptMode=OFF"),
        ("short", first_two, "MaxTime=10 PriorityTier=10 PreemptMode=REQUEUE"),
    )
    return "".join(f"PartitionName={name} Nodes={where} State=UP {rest}\n" for name, where, rest in rows)


# cred_expire: a requeued job may begin cred_expire + 1 s later; less than 5 silently becomes 120.
# CR_Core_Memory: CR_Core would hide steps that starve each other of memory.
# NoInAddrAny and NoCtldInAddrAny: listen on the loopback addresses only.
# MinJobAge: scontrol shows finished jobs for as long as a test may ask, without accounting.
_GENERAL = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=cred_expire=5,socket={socket}
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmdSpoolDir={spool}/%n
StateSaveLocation={spool}/ctld
SlurmctldLogFile={logs}/slurmctld.log
SlurmdLogFile={logs}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
MpiDefault=none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
PropagateResourceLimits=NONE
ReturnToService=2
SlurmdTimeout=20
SlurmctldTimeout=30
InactiveLimit=0
KillWait=5
MinJobAge=600
MessageTimeout=20
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=200
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,bf_max_job_test=1000,sched_interval=1,sched_min_interval=10000,batch_sched_delay=0,requeue_setup_env_fail
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
RequeueExit=75
RequeueExitHold=76
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={logs}/jobcomp.log
"""

# Without PrivateData=cloud sinfo does not list nodes that are powered down.
_BIG_NODES = f"""\
PrivateData=cloud
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=3600
ResumeTimeout=3600
NodeName=big[1-{BIG_NODES}] NodeAddr=127.0.0.1 CPUs=96 SocketsPerBoard=2 CoresPerSocket=48 \
RealMemory=1000000 Gres=gpu:h200:8 Features=h200 State=CLOUD
"""
