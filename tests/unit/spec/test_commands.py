"""The table of commands: what is refused, with its place, and what stays as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcflow.errors import SpecErrors
from hpcflow.spec.commands import PLACEHOLDERS, fill
from hpcflow.spec.files import check_files
from hpcflow.spec.load import load, load_resolved, save
from hpcflow.spec.run import RunSpec
from tests.support.specs import SPEC, complete_spec, tiny_spec, write_spec


def written(folder: Path, keys: str, *, name: str = "server") -> RunSpec:
    """The small spec with one command; `keys` are lines of its table."""
    lines = "".join(f"    {line}\n" for line in keys.splitlines())
    return load(write_spec(folder, f"{SPEC}commands:\n  {name}:\n{lines}"))


def refused(folder: Path, keys: str, *, name: str = "server") -> str:
    with pytest.raises(SpecErrors) as caught:
        written(folder, keys, name=name)
    (fault,) = caught.value.faults
    return str(fault).replace(f"{folder}/", "")


def faults(folder: Path, *overrides: str) -> list[str]:
    with pytest.raises(SpecErrors) as caught:
        tiny_spec(folder, *overrides)
    return [str(fault) for fault in caught.value.faults]


def test_a_command_needs_no_more_than_its_words(tmp_path: Path) -> None:
    server = written(tmp_path, "command: [serve, --port, '{port}']").commands["server"]
    assert server.command == ["serve", "--port", "{port}"]
    assert (server.nodes, server.ranks_per_node, server.gpus_per_node, server.on_gpus) == (1, 1, 0, False)
    assert (server.essential, server.ready, server.folder) == (True, None, str(tmp_path))
    assert server.ready_within_s(100) == 80


def test_the_resolved_spec_is_an_equal_one(tmp_path: Path) -> None:
    keys = (
        "command: [sh, -c, \"echo '{{}}'\\necho {rank}\"]\nfolder: sub\nready: {file: 'a {rank}'}\nnodes: 2"
    )
    spec = written(tmp_path, keys)
    assert spec.commands["server"].folder == str(tmp_path / "sub")
    save(spec, tmp_path / "spec.json")
    assert load_resolved(tmp_path / "spec.json") == spec


def test_words_are_filled_in_and_doubled_braces_are_single() -> None:
    values = {name: f"<{name}>" for name in PLACEHOLDERS}
    assert fill("http://{address}:{port}/", values) == "http://<address>:<port>/"
    assert fill('{{"rank": {rank}}}', values) == '{"rank": <rank>}'
    assert fill("", values) == ""


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("{prt}", "unknown placeholder {prt} (got '{prt}')\n  did you mean {port}?"),
        ("a{}", "unknown placeholder {} (got 'a{}')\n  valid: {address}, {port}, "),
        ("{0}", "unknown placeholder {0} (got '{0}')\n  valid: "),
        ("{port.real}", "unknown placeholder {port.real} (got '{port.real}')\n  did you mean {port}?"),
        ("{rank[0]}", "unknown placeholder {rank[0]} (got '{rank[0]}')\n  did you mean {rank}?"),
        (
            "{port:>9}",
            "a placeholder is a name alone: {port} (got '{port:>9}')\n  a brace that is meant is doubled",
        ),
        ("{port!r}", "a placeholder is a name alone: {port} (got '{port!r}')"),
        (
            "${HOME",
            "a brace that is no placeholder's: expected '}' before end of string (got '${HOME')\n  a brace",
        ),
        ("}", "a brace that is no placeholder's: Single '}' encountered in format string (got '}')"),
    ],
)
def test_a_brace_that_is_no_placeholder_is_refused_with_its_place(
    tmp_path: Path, word: str, problem: str
) -> None:
    said = refused(tmp_path, f"command:\n- serve\n- '{word}'")
    assert said.startswith(f"ppo.yaml:32 commands.server.command.1: {problem}")
    said = refused(tmp_path, f"command: [serve]\nready:\n  file: '{word}'")
    assert said.startswith(f"ppo.yaml:32 commands.server.ready.file: {problem}")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            "command: []",
            "ppo.yaml:30 commands.server.command: must begin with the name of a program (got a list)\n"
            "  as in  [python, -m, http.server]",
        ),
        ("command: serve", "ppo.yaml:30 commands.server.command: must be a list (got 'serve')"),
        ("command: [serve, 1]", "ppo.yaml:30 commands.server.command.1: must be text (got 1)"),
        ("nodes: 1", "ppo.yaml:29 commands.server.command: this key is required\n  valid: a list"),
        (
            "command: [a]\ngpus_per_node: 1",
            "ppo.yaml:31 commands.server.gpus_per_node: unknown key\n  did you mean gpus_per_rank?",
        ),
        (
            "command: [a]\nready: {prot: true}",
            "ppo.yaml:31 commands.server.ready.prot: unknown key\n  did you mean port?",
        ),
        (
            "command: [a]\nready: {}",
            "ppo.yaml:31 commands.server.ready: must hold exactly one of port, http and file "
            "(got a mapping)\n  write  port: true,  http: /PATH  or  file: PATH,  or leave ready out",
        ),
        (
            "command: [a]\nready: {port: true, http: /}",
            "ppo.yaml:31 commands.server.ready: must hold exactly one of port, http and file "
            "(got a mapping)\n  write  port: true,  http: /PATH  or  file: PATH,  or leave ready out",
        ),
        (
            "command: [a]\nready: {port: 1}",
            "ppo.yaml:31 commands.server.ready.port: must be true or false (got 1)",
        ),
        (
            "command: [a]\nready: {http: health}",
            "ppo.yaml:31 commands.server.ready.http: must be the path of a URL, such as /health or null "
            "(got 'health')",
        ),
        (
            "command: [a]\nenvironment: {RANK: '1'}",
            "ppo.yaml:31 commands.server.environment.RANK: this variable is set by hpcflow or by Slurm "
            "(got '1')",
        ),
        (
            "command: [a]\nessential: 1",
            "ppo.yaml:31 commands.server.essential: must be true or false (got 1)",
        ),
        (
            "command: [a]\nready_timeout_s: 601",
            "ppo.yaml:31 commands.server.ready_timeout_s: longer than the 600 s in which everything must "
            "be ready (got 601)\n  raise health.start_timeout_s, or set essential: false",
        ),
        (
            "command: [a]\nshare_with: nobody",
            "ppo.yaml:31 commands.server.share_with: this run has no role nobody (got 'nobody')\n"
            "  valid: actor, critic, reference, reward, rollout",
        ),
        (
            "command: [a]\nshare_with: actor",
            "ppo.yaml:31 commands.server.share_with: server takes no GPUs, so there is no set to share "
            "(got 'actor')\n  set commands.server.gpus_per_rank, or leave share_with out",
        ),
    ],
)
def test_faults_of_a_command_are_named_with_file_line_and_key(tmp_path: Path, keys: str, said: str) -> None:
    assert refused(tmp_path, keys) == said


def test_time_that_is_not_essential_may_be_long(tmp_path: Path) -> None:
    spec = written(tmp_path, "command: [a]\nready_timeout_s: 601\nessential: false")
    assert spec.commands["server"].ready_within_s(600) == 601


@pytest.mark.parametrize(
    "name", ["actor", "rollout", "driver", "supervisor", "sweeper", "step", "batch", "step_a"]
)
def test_names_of_other_processes_are_refused(tmp_path: Path, name: str) -> None:
    said = refused(tmp_path, "command: [a]", name=name)
    assert said.startswith(f"ppo.yaml:29 commands.{name}: this name is taken by a process of every run")


@pytest.mark.parametrize("name", ["Server", "1st", "a-b", "a.b", "_a", "a" * 41])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    assert f"ppo.yaml:29 commands.{name}: not a valid name" in refused(tmp_path, "command: [a]", name=name)


def test_steps_must_not_be_called_alike(tmp_path: Path) -> None:
    shared = [
        *("roles.actor.gpus_per_node=1", "slurm.gpus_per_node=2"),
        "commands.judge={command: [a], gpus_per_rank: 1, share_with: actor}",
    ]
    tiny_spec(tmp_path, *shared)
    (said,) = faults(tmp_path, *shared, "commands.actor_judge.command=[b]")
    assert "commands.actor_judge: steps actor+judge and actor_judge would both be called actor_judge" in said


def test_sharing_is_of_gpus_that_are_there_and_of_nodes_of_one_kind(tmp_path: Path) -> None:
    shares = [
        *("roles.actor.gpus_per_node=1", "slurm.gpus_per_node=2"),
        "commands.judge={command: [a], share_with: actor, gpus_per_rank: 2}",
    ]
    (said,) = faults(tmp_path, *shares)
    assert "commands.judge.gpus_per_rank: more than the 1 that actor has to share (got 2)" in said
    (said,) = faults(tmp_path, *shares, "commands.judge.gpus_per_rank=1", "commands.judge.gpu_type=a100")
    assert "commands.judge: judge shares the GPUs of actor, but asks for other nodes (gpu_type a100;" in said
    ring = ["commands.a={command: [a], share_with: b}", "commands.b={command: [a], share_with: a}"]
    assert "but: a -> b -> a" in faults(tmp_path, *ring)[0]


def test_a_folder_that_is_not_there_is_found_before_submission(tmp_path: Path) -> None:
    path = complete_spec(tmp_path)
    check_files(load(path, ["commands.server.command=[a]"]))
    with pytest.raises(SpecErrors, match=r"--set commands.server.folder: there is no such folder"):
        check_files(load(path, ["commands.server={command: [a], folder: nowhere}"]))
