"""The function reward with real worker processes: what a bad function costs, and what it must not cost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hpcflow.errors import FirstStepFault
from hpcflow.roles.contract import ScoreRequest
from hpcflow.roles.reward import FunctionRewardRole

pytestmark = pytest.mark.dist

TIMEOUT_S = 1.0

# What a sample's response makes the function do; anything else is scored as a number.
FUNCTION = """
import os, signal, sys, time
import numpy as np

CALLS = []

class Nasty(Exception):
    def __str__(self):
        raise RuntimeError("no message")

def score(prompt, response, row):
    CALLS.append(response)
    match response:
        case "raise": raise ValueError("two\\nlines")
        case "nasty": raise Nasty()
        case "exit": sys.exit(3)
        case "hang": print("hanging", flush=True); time.sleep(600)
        case "late": time.sleep(row["seconds"]); return 1.0
        case "die": os._exit(7)
        case "killed": os.kill(os.getpid(), signal.SIGKILL)
        case "nan": return float("nan")
        case "inf": return float("-inf")
        case "float64 only": return 1e300
        case "huge int": return 10**400
        case "none": return None
        case "tuple": return (1.0,)
        case "bool": return True
        case "numpy bool": return np.bool_(True)
        case "text": return "1.0"
        case "int": return 3
        case "numpy": return np.float32(0.5)
        case "numpy int": return np.int64(4)
        case "prompt": return float(prompt)
        case "row": return row["answer"]
        case "signal":
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGUSR2)
            return 1.0
        case "pid": return os.getpid()
    return float(response)
"""


def request(responses: list[str], *, prompt: str = "0", row: str = "{}") -> ScoreRequest:
    count = len(responses)
    return ScoreRequest(
        prompts=[prompt] * count, responses=responses, rows=[row] * count, token_ids=[[]] * count
    )


@pytest.fixture(scope="module")
def function_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("a folder, 'quoted' \u00e4") / "my reward.py"
    path.write_text(FUNCTION, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def role(function_file: Path) -> Iterator[FunctionRewardRole]:
    made = FunctionRewardRole(f"{function_file}:score", timeout_s=TIMEOUT_S, processes=2)
    yield made
    made.close()


def test_scores_keep_the_order_of_the_samples(role: FunctionRewardRole) -> None:
    responses = [str(number) for number in range(300)]
    reply = role.score(request(responses))
    assert reply.scores == [float(number) for number in range(300)]
    assert reply.faults == []


def test_no_samples_are_no_scores(role: FunctionRewardRole) -> None:
    assert role.score(request([])).scores == []


def test_prompt_and_row_reach_the_function(role: FunctionRewardRole) -> None:
    reply = role.score(request(["prompt", "row"], prompt="7", row='{"answer": 8}'))
    assert reply.scores == [7.0, 8.0]


def test_ints_and_numpy_scalars_are_scores(role: FunctionRewardRole) -> None:
    reply = role.score(request(["int", "numpy", "numpy int"]))
    assert reply.scores == [3.0, 0.5, 4.0]
    assert all(type(score) is float for score in reply.scores)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("raise", "ValueError: two lines (my reward.py:14)"),
        ("nasty", "Nasty"),
        ("exit", "SystemExit: 3"),
        ("nan", "not finite"),
        ("inf", "not finite"),
        ("float64 only", "not finite in float32"),
        ("huge int", "OverflowError"),
        ("none", "NoneType"),
        ("tuple", "tuple"),
        ("bool", "bool"),
        ("numpy bool", "bool"),
        ("text", "str"),
        ("not a number", "ValueError"),
    ],
)
def test_a_bad_result_costs_its_sample_only(role: FunctionRewardRole, response: str, reason: str) -> None:
    reply = role.score(request(["1", "2", response, "3"]))
    assert reply.scores == [1.0, 2.0, None, 3.0]
    assert len(reply.faults) == 1
    assert reply.faults[0].startswith("sample 2: ")
    assert reason in reply.faults[0]
    assert "\n" not in reply.faults[0]


@pytest.mark.parametrize(
    ("response", "reason"),
    [("hang", "longer than 1 s"), ("die", "exit code 7"), ("killed", "SIGKILL")],
)
def test_a_lost_worker_costs_the_sample_under_way_only(
    role: FunctionRewardRole, response: str, reason: str
) -> None:
    responses = [str(number) for number in range(40)]
    responses[11] = response
    reply = role.score(request(responses))
    wanted = [None if index == 11 else float(index) for index in range(40)]
    assert reply.scores == wanted
    assert len(reply.faults) == 1
    assert reply.faults[0].startswith("sample 11: ")
    assert reason in reply.faults[0]
    assert role.score(request(["5"])).scores == [5.0]


def test_a_hanging_sample_is_charged_its_limit_once(role: FunctionRewardRole) -> None:
    began = time.monotonic()
    reply = role.score(request(["1"] * 8 + ["hang"] + ["1"] * 8))
    took = time.monotonic() - began
    assert reply.scores.count(1.0) == 16
    # One limit, the chunk's box and a new worker; charging it twice would take two limits and more.
    assert TIMEOUT_S <= took < 2 * TIMEOUT_S, took


def test_slow_but_honest_samples_in_one_chunk_are_all_scored(role: FunctionRewardRole) -> None:
    """40 samples for two workers are chunks of five: five of 0.3 s are over one sample's limit."""
    responses = ["late"] * 5 + [str(number) for number in range(5, 40)]
    reply = role.score(request(responses, row='{"seconds": 0.3}'))
    assert reply.faults == []
    assert reply.scores == [1.0] * 5 + [float(number) for number in range(5, 40)]


def test_a_sample_just_over_the_limit_is_a_fault_wherever_it_stands(
    role: FunctionRewardRole,
) -> None:
    reply = role.score(request(["late"], row='{"seconds": 1.05}'))
    assert reply.scores == [None]
    assert "longer than 1 s" in reply.faults[0]


def test_workers_outlive_the_signals_of_a_preemption(role: FunctionRewardRole) -> None:
    assert role.score(request(["signal", "2"])).scores == [1.0, 2.0]


def test_a_worker_killed_while_idle_is_replaced(role: FunctionRewardRole) -> None:
    for _ in range(2):
        pid = role.score(request(["pid"])).scores[0]
        assert pid is not None
        worker = psutil.Process(int(pid))
        worker.kill()
        until = time.monotonic() + 5
        while worker.is_running() and time.monotonic() < until:
            time.sleep(0.02)  # until the pool has noticed and reaped it while idle, the harder case
        assert role.score(request(["1", "2"])).scores == [1.0, 2.0]


@pytest.mark.parametrize(
    ("source", "name", "reason"),
    [
        (None, "score", "there is no file"),
        ("import does_not_exist_xyz", "score", "does_not_exist_xyz"),
        ("1 / 0", "score", "ZeroDivisionError"),
        ("raise SystemExit('no')", "score", "SystemExit"),
        ("import os; os._exit(3)", "score", "ended the worker process"),
        ("def other(prompt, response, row): return 1.0", "score", "has no 'score'"),
        ("score = 3", "score", "not a function"),
        ("def score(prompt, response): return 1.0", "score", "cannot be called"),
        ("async def score(prompt, response, row): return 1.0", "score", "async"),
    ],
)
def test_a_function_that_cannot_be_used_is_a_spec_fault(
    tmp_path: Path, source: str | None, name: str, reason: str
) -> None:
    path = tmp_path / "reward.py"
    if source is not None:
        path.write_text(source, encoding="utf-8")
    with pytest.raises(FirstStepFault, match=reason) as caught:
        FunctionRewardRole(f"{path}:{name}", timeout_s=1.0, processes=1)
    assert caught.value.cause == "spec"
    assert caught.value.role == "reward"
    assert str(path) in caught.value.message


def test_an_import_that_hangs_is_a_spec_fault(tmp_path: Path) -> None:
    path = tmp_path / "reward.py"
    path.write_text("import time; time.sleep(600)", encoding="utf-8")
    with pytest.raises(FirstStepFault, match="did not end within 2 s") as caught:
        FunctionRewardRole(f"{path}:score", timeout_s=1.0, processes=1, start_timeout_s=2.0)
    assert caught.value.cause == "spec"


def test_a_function_of_a_package_is_found_by_its_dotted_name() -> None:
    role = FunctionRewardRole("os.path:join", timeout_s=1.0, processes=1)
    try:
        assert "TypeError" in role.score(request(["1"])).faults[0]
    finally:
        role.close()
    with pytest.raises(FirstStepFault, match="no_such_module_xyz"):
        FunctionRewardRole("no_such_module_xyz:score", timeout_s=1.0, processes=1)


ROLE_PROCESS = """
import sys
import psutil
from hpcflow.roles.contract import ScoreRequest
from hpcflow.roles.reward import FunctionRewardRole

if __name__ == "__main__":
    role = FunctionRewardRole(sys.argv[1], timeout_s=600.0, processes=2)
    print(*{"torch", "transformers", "hpcflow_reward_function"} & set(sys.modules), flush=True)
    print(*(p.pid for p in psutil.Process().children(recursive=True)), flush=True)
    if sys.stdin.readline() == "hang\\n":
        role.score(ScoreRequest(["", ""], ["hang", "hang"], ["{}", "{}"], [[], []]))
"""


@pytest.fixture
def role_process(function_file: Path, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    script = tmp_path / "role.py"
    script.write_text(ROLE_PROCESS, encoding="utf-8")
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(script), f"{function_file}:score"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        with process:
            process.wait(timeout=10)


@pytest.mark.parametrize("end", ["killed while its workers hang", "exits"])
def test_a_role_loads_neither_torch_nor_user_code_and_leaves_no_worker_behind(
    role_process: Callable[[], subprocess.Popen[str]], end: str
) -> None:
    process = role_process()
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "\n"
    children = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    assert len(children) >= 2
    if end == "killed while its workers hang":
        process.stdin.write("hang\n")
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(2)] == ["hanging\n"] * 2
        process.kill()
    else:
        process.stdin.close()  # the role returns without closing its pool
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
