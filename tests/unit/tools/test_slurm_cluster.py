"""The private cluster without its daemons: configuration, ports, refusals, and whom it would end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import slurm_cluster
import slurm_packages
from slurm_layout import FORMS, LONGEST_ROOT, Facts, Layout, fault_of_root, gres_conf, slurm_conf
from slurm_stop import environment, stop

Starter = Callable[..., psutil.Process]
EPHEMERAL_FROM = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def facts(form: str = "small") -> Facts:
    ports = (20001, 20002, 20003, 20004) if form == "small" else ()
    return Facts("hpcflow-x", form=form, host="h", user="u", controller_port=20000, node_ports=ports)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Start a stand-in for a daemon: a script of that name, after which the process is named."""
    started: list[subprocess.Popen[bytes]] = []

    def starter(
        name: str, *arguments: str, output: Path = Path(os.devnull), **variables: str
    ) -> psutil.Process:
        script = tmp_path / name
        # Written once: a shell that has just been started may not have read it yet.
        if not script.exists():
            script.write_text("#!/bin/sh\nread -r line\n")
            script.chmod(0o755)
        with output.open("w") as stdout:
            child = subprocess.Popen(
                [str(script), *arguments], env=variables, stdin=subprocess.PIPE, stdout=stdout
            )
        started.append(child)
        return psutil.Process(child.pid)

    yield starter
    for child in started:
        child.kill()
        child.communicate(timeout=10)


def lives(process: psutil.Process) -> bool:
    return process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("form", FORMS)
def test_every_path_of_the_configuration_is_under_the_root(form: str) -> None:
    layout = Layout(Path("/a/cluster"))
    text = slurm_conf(layout, facts(form)) + gres_conf(layout, facts(form))
    paths = re.findall(r"=(/[^\s,]+)", text)
    assert len(paths) >= 6
    assert {path for path in paths if not path.startswith("/a/cluster/")} <= {"/bin/true"}


def test_the_configuration_listens_on_loopback_and_requeues_soon() -> None:
    text = slurm_conf(Layout(Path("/r")), facts())
    assert "SlurmctldHost=h(127.0.0.1)\n" in text
    assert "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny\n" in text
    assert len(re.findall(r"NodeAddr=127\.0\.0\.1 Port=2000[1-4] ", text)) == 4
    # Slurm replaces less than 5 by 120, silently.
    assert "AuthInfo=cred_expire=5,socket=/r/munge/sock\n" in text
    assert not re.search(r"^\w+=$", text, re.MULTILINE), "Slurm does not start with an empty value"


def test_each_node_has_four_devices_of_its_own() -> None:
    layout = Layout(Path("/r"))
    devices = [device for node in ("node1", "node2") for device in layout.devices(node)]
    assert len(set(devices)) == 8
    assert "NodeName=node2 Name=gpu Type=h200 File=/r/dev/node2/gpu[0-3]\n" in gres_conf(layout, facts())


def test_ports_are_free_distinct_and_not_those_of_connections() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", slurm_cluster.free_ports(1)[0]))
        held.listen()
        ports = [port for _ in range(20) for port in slurm_cluster.free_ports(5)]
        assert held.getsockname()[1] not in ports
    assert max(ports) < EPHEMERAL_FROM
    assert len(set(ports)) > 50, "chosen at random"


@pytest.mark.parametrize("name", ["with blank", "a,b", "a#b", "a%b", "a[1]", "a=b", "long" * LONGEST_ROOT])
def test_a_root_that_slurm_cannot_take_is_refused(tmp_path: Path, name: str) -> None:
    assert fault_of_root(tmp_path / name) is not None
    assert slurm_cluster.main(["up", "--root", str(tmp_path / name)]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_else_in_it_is_neither_used_nor_purged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").touch()
    assert slurm_cluster.main(["up", "--root", str(tmp_path)]) == 2
    assert "neither an empty folder nor that of a cluster" in capsys.readouterr().err
    assert slurm_cluster.main(["down", "--root", str(tmp_path), "--purge"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_purge_leaves_what_is_not_the_clusters(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.clear()
    layout.lock.touch()
    (tmp_path / "mine").touch()
    assert slurm_cluster.main(["down", "--root", str(tmp_path), "--purge"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_where_it_may_not_install_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert slurm_cluster.main(["up", "--root", str(tmp_path / "c")]) == 2
    said = capsys.readouterr().err
    assert "not installed: slurmctld, slurmd, sbatch, munged" in said
    assert "apt-get install --no-install-recommends slurmctld slurmd slurm-client munge" in said
    assert not (tmp_path / "c").exists()


def test_packages_may_not_start_services_while_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(slurm_packages, "POLICY", policy)
    seen = []

    def apt(command: list[str]) -> subprocess.CompletedProcess[str]:
        seen.append((command[1], subprocess.run([policy], check=False).returncode))
        return subprocess.CompletedProcess(
            command, returncode=0 if len(seen) == 3 else 100, stdout="no index"
        )

    monkeypatch.setattr(slurm_packages, "_apt", apt)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(slurm_packages, "_missing", lambda: [] if len(seen) == 3 else ["slurmd"])
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/usr/bin/apt-get")
    slurm_packages.ensure_programs()
    # The index is fetched where the packages are not found at first; 101 forbids what is asked for.
    assert seen == [("install", 101), ("update", 101), ("install", 101)]
    assert not policy.exists()


def test_a_policy_of_the_host_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("theirs")
    monkeypatch.setattr(slurm_packages, "POLICY", policy)
    with slurm_packages._no_services():
        assert policy.read_text() == "theirs"
    assert policy.read_text() == "theirs"


def test_only_daemons_of_this_cluster_are_ended(tmp_path: Path, start: Starter) -> None:
    layout, other = Layout(tmp_path / "this"), Layout(tmp_path / "other")
    here = str(layout.conf)
    ours = [
        start("slurmd", "-f", here, "-N", "node1"),
        start("slurmd", "-N", "node2", SLURM_CONF=here),
        start("munged", f"--key-file={layout.munge_key}"),
    ]
    foreign = [
        start("slurmd", "-f", str(other.conf)),
        # Started in a shell that had our configuration exported.
        start("slurmd", "-f", str(other.conf), SLURM_CONF=here),
        start("munged", f"--key-file={other.munge_key}", SLURM_CONF=here),
        start("munged"),
        # Not daemons: an editor on our configuration, a program of a user who works with this cluster.
        start("editor", here, SLURM_CONF=here),
    ]
    assert stop(layout) == len(ours)
    assert [lives(process) for process in ours] == [False] * len(ours)
    assert [lives(process) for process in foreign] == [True] * len(foreign)


def test_daemons_are_found_where_their_folder_was_removed(tmp_path: Path, start: Starter) -> None:
    root = tmp_path / "c"
    layout = Layout(root)
    layout.logs.mkdir(parents=True)
    controller = start("slurmctld", "-f", str(layout.conf))
    # Without arguments and environment, as a step's daemon looks.
    step = start("slurmstepd", output=layout.logs / "slurmd.node1.log")
    user = start("slurmstepd", output=layout.logs / "slurm-1.out")
    shutil.rmtree(root)
    assert slurm_cluster.main(["down", "--root", str(root)]) == 0
    assert [lives(process) for process in (controller, step, user)] == [False, False, True]
    assert not root.exists()


def test_a_daemon_that_ignores_term_is_killed(tmp_path: Path, start: Starter) -> None:
    layout = Layout(tmp_path / "c")
    # The disposition "ignore" is inherited.
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        stubborn = start("slurmctld", "-f", str(layout.conf))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stop(layout) == 1
    assert not lives(stubborn)


def test_commands_see_no_other_slurm_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_CLUSTERS", "SBATCH_PARTITION", "SRUN_DEBUG"):
        monkeypatch.setenv(name, "theirs")
    variables = environment(Layout(Path("/r")))
    assert variables["SLURM_CONF"] == "/r/etc/slurm.conf"
    assert "theirs" not in variables.values()


@pytest.mark.parametrize("tool", ["slurm_up", "slurm_down"])
def test_the_tools_explain_themselves(tool: str) -> None:
    path = Path(slurm_cluster.__file__).with_name(tool)
    shown = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert "--root" in shown.stdout
    assert shutil.which(path) is not None, "executable"
