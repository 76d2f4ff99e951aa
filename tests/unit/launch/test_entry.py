import ast
import sys
from pathlib import Path

from hpcflow.launch import entry


def test_the_supervisor_gets_the_users_environment_back() -> None:
    inside = {
        "HOME": "/home/me",
        "CUDA_VISIBLE_DEVICES": "",
        "SUBMITIT_LOCAL_COMMAND": "python -m submitit.core._submit",
        entry.KEPT_DEVICES: "2,GPU-8f2",
    }
    assert entry.supervisor_environment(inside) == {"HOME": "/home/me", "CUDA_VISIBLE_DEVICES": "2,GPU-8f2"}


def test_a_user_without_a_gpu_list_gets_none() -> None:
    assert entry.supervisor_environment({"A": "b", "CUDA_VISIBLE_DEVICES": ""}) == {"A": "b"}


def test_the_submitted_function_needs_the_standard_library_only() -> None:
    tree = ast.parse(Path(entry.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert all(str(module).split(".")[0] in sys.stdlib_module_names for module in modules)
