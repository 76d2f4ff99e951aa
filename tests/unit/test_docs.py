"""The documents are true: commands exist, links lead somewhere, generated pages are current."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import time
from pathlib import Path

import config_meanings
import config_reference
import pytest

import hpcflow
from hpcflow.cli.app import app

pytestmark = pytest.mark.terminal

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "configs").glob("*.md"),
        *(ROOT / "sbatch").glob("*.md"),
    ]
)
DECISIONS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
COMMANDS = {
    command.name or command.callback.__name__ for command in app.registered_commands if command.callback
}

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
# In prose too, `hpcflow` followed by a word in code is a command.
COMMAND = re.compile(r"hpcflow ([a-z]+)\b")
TOOL = re.compile(r"\btools/[a-z0-9_-]+(?:\.[a-z]+)?")
# Rendered for the reader, not typed: `git clone ... hpcflow && ...`, `hpcflow trains`.
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
# Of the same interpreter, started empty.
HELP_COSTS_AT_MOST = 25


def code_of(document: Path) -> str:
    return "\n".join(CODE.findall(document.read_text()))


def anchors_of(document: Path) -> set[str]:
    titles = HEADING.findall(document.read_text())
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


def name(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_command_shown_exists(document: Path) -> None:
    shown = set(COMMAND.findall(code_of(document)))
    assert shown <= COMMANDS, f"no such command of hpcflow: {sorted(shown - COMMANDS)}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_tool_shown_exists(document: Path) -> None:
    for tool in TOOL.findall(code_of(document)):
        assert (ROOT / tool).is_file(), f"{name(document)} shows {tool}, which does not exist"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        aim = document.parent / path if path else document
        assert aim.exists(), f"{name(document)} links to {target}"
        if anchor:
            assert anchor in anchors_of(aim), f"{name(document)} links to {target}"


def test_readme_begins_with_the_two_commands_and_shows_the_three_of_a_run() -> None:
    first_screen = (ROOT / "README.md").read_text().partition("\n---\n")[0]
    assert (
        first_screen.index("tools/demo")
        < first_screen.index("tools/test")
        < first_screen.index("hpcflow plan")
    )
    for command in ("plan", "submit", "status"):
        assert f"$ hpcflow {command}" in first_screen


@pytest.mark.parametrize("tool", ["demo", "test", "bench"])
def test_the_commands_of_the_readme_can_be_run(tool: str) -> None:
    path = ROOT / "tools" / tool
    assert path.stat().st_mode & 0o111, f"tools/{tool} is not executable"
    assert path.read_text().startswith("#!/usr/bin/env bash\n")


def test_readme_lists_every_config() -> None:
    readme = (ROOT / "README.md").read_text()
    for config in (ROOT / "configs").glob("*.yaml"):
        assert f"configs/{config.name}" in readme


def test_there_are_decisions_numbered_without_a_gap_and_all_are_listed() -> None:
    assert [int(decision.name[:4]) for decision in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    listed = LINK.findall((ROOT / "docs" / "adr" / "README.md").read_text())
    assert listed == [decision.name for decision in DECISIONS]


@pytest.mark.parametrize("decision", DECISIONS, ids=name)
def test_a_decision_says_context_decision_and_cost(decision: Path) -> None:
    text = decision.read_text()
    assert text.startswith(f"# {decision.name[:4]} ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Cost"]
    assert len(text.splitlines()) <= 80, "a decision is one page"


def test_changelog_has_an_unreleased_section_with_entries() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    unreleased = changelog.partition("## Unreleased\n")[2].partition("\n## ")[0]
    assert re.search(r"^- \S", unreleased, re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_documents_are_ascii(document: Path) -> None:
    assert document.read_text().isascii()


def test_the_reference_of_the_spec_is_current() -> None:
    assert config_reference.TARGET.read_text() == config_reference.reference(), (
        "run: python tools/config_reference.py"
    )


def test_a_key_without_a_meaning_or_a_meaning_without_a_key_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meanings = dict(config_meanings.MEANINGS)
    monkeypatch.setattr(config_reference, "MEANINGS", {**meanings, "Ppo.gone": "A key of old"})
    with pytest.raises(ValueError, match=r"Ppo\.gone"):
        config_reference.reference()
    del meanings["Ppo.gamma"]
    monkeypatch.setattr(config_reference, "MEANINGS", meanings)
    with pytest.raises(KeyError, match=r"Ppo\.gamma"):
        config_reference.reference()


def test_every_message_in_troubleshooting_is_one_of_ours() -> None:
    """Each bold message is found in the code, piece by piece between its `...`."""
    sources = "".join(path.read_text() for path in (ROOT / "hpcflow").rglob("*.py"))
    sources += (ROOT / "tools" / "setup_env").read_text()
    plain = _bare(sources)
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    entries = [" ".join(entry.split()) for entry in re.findall(r"\*\*(.+?)\*\*", text, re.DOTALL)]
    messages = [message for entry in entries for message in re.findall(r"`([^`]+)`", entry)]
    assert len(messages) > 50
    unknown = [
        message
        for message in messages
        if message not in NOT_IN_ONE_PIECE
        and not all(_bare(piece) in plain for piece in re.split(r"\.\.\.|HOST", message))
    ]
    assert not unknown, f"not in the code: {unknown}"


# Messages that the code puts together from words, or that come from vLLM.
NOT_IN_ONE_PIECE = {
    "must be a whole number from ... to ...",
    "must be one of ...",
    "must be text, not a list",
    "there is no key '...'",
    "there is no column '...'",
    "... was ended by SIGKILL",
    "Command 'lscpu ...' returned non-zero exit status 127",
}


def _bare(text: str) -> str:
    """Without what string literals put between the words of a message."""
    text = re.sub(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", "", text)
    return re.sub(r"""[\s"'\\(){}\[\],]|(?<=["'\s])f(?=["'])""", "", text)


def test_public_names_are_there_and_import_no_engine() -> None:
    public = importlib.import_module("hpcflow")
    assert sorted(public.__all__) == list(public.__all__)
    for exported in public.__all__:
        assert exported in vars(hpcflow)
    engines = {"torch", "vllm", "deepspeed", "transformers"}
    code = f"import sys, hpcflow; sys.exit(bool({engines} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_help_costs_at_most_so_many_empty_interpreters() -> None:
    empty = _best_of_five([sys.executable, "-c", ""])
    helped = _best_of_five([sys.executable, "-m", "hpcflow", "--help"])
    print(f"hpcflow --help: {helped:.2f} s, {helped / empty:.1f} empty interpreters")
    assert helped <= HELP_COSTS_AT_MOST * empty


def _best_of_five(command: list[str]) -> float:
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - started)
    return min(taken)
