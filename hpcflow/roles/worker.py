"""Life of a role process: check inputs, load, say ready, serve the driver, leave when released.

Before it loads a model, a rank waits until every process has checked its inputs. Then it waits for rank 0
of its role (process group), then for calls of the driver. It ignores TERM, INT
and USR2, which reach role steps first at a preemption: it reports them to the supervisor, which asks the
driver to save and stop. It leaves when the supervisor releases it, or dies with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack

from hpcflow import signals
from hpcflow.errors import EXIT_FAILED, EXIT_OK
from hpcflow.roles import contract
from hpcflow.roles.setting import RoleSetting
from hpcflow.rpc.control import ControlClient
from hpcflow.rpc.identity import ProcessIdentity
from hpcflow.rpc.server import Server
from hpcflow.spec.commands import START_SHARE
from hpcflow.spec.roles import FunctionReward, ModelReward, RoleName

log = logging.getLogger(__name__)

# What a rank logs when all inputs are checked and it goes on.
LOADING = "all inputs are checked: loading"

CONTRACTS: dict[RoleName, type] = {
    "actor": contract.Actor,
    "critic": contract.Critic,
    "reference": contract.Reference,
    "reward": contract.Reward,
    "rollout": contract.Rollout,
}


def main(role: RoleName) -> int:
    """Run one rank until it is released; returns the exit code.

    A fault is told to the supervisor before this returns.
    """
    identity = ProcessIdentity.from_environ()
    if identity.parent is not None:
        signals.die_with_parent(identity.parent)
    control = ControlClient(identity)
    released = threading.Event()
    signals.on_signals((signal.SIGTERM, signal.SIGINT, signal.SIGUSR2), control.signalled)
    try:
        setting = RoleSetting.read(role, identity, control)
        control.start_heartbeat(setting.spec.health.heartbeat_s, on_release=released.set)
        _serve(setting, released)
    except Exception as error:
        # Whatever it is, the supervisor must hear of it before the process is gone.
        log.exception("this rank cannot go on")
        control.report(error)
        return EXIT_FAILED
    return EXIT_OK


def _serve(setting: RoleSetting, released: threading.Event) -> None:
    # DeepSpeed settles on an accelerator when it is first imported, and guesses unless told.
    os.environ.setdefault("DS_ACCELERATOR", setting.device)
    with ExitStack() as closing:
        load = _prepare(setting, closing)
        # A fault of the user's data or reward must not cost the time that models take to load.
        if not setting.control.await_inputs_checked(setting.spec.health.start_timeout_s):
            return
        log.info(LOADING)
        implementation = load()
        with Server(setting.identity.address, setting.identity.token) as server:
            setting.control.ready(server.endpoint, contract.CONTRACT_VERSION)
            server.serve(CONTRACTS[setting.role], implementation, stop=released)


def _prepare(setting: RoleSetting, closing: ExitStack) -> Callable[[], object]:
    """Import the role's engine and check its inputs; returns what loads its model and gives the role.

    Engines are imported only here. What a role has to close goes onto `closing`.
    """
    match setting.role:
        case "actor":
            from hpcflow.roles.actor import ActorRole

            return lambda: ActorRole(setting)
        case "critic":
            from hpcflow.roles.critic import CriticRole

            return lambda: CriticRole(setting)
        case "reference":
            from hpcflow.roles.reference import ReferenceRole

            return lambda: ReferenceRole(setting)
        case "rollout":
            from hpcflow.roles.rollout import RolloutRole

            RolloutRole.check(setting)
            return lambda: closing.enter_context(contextlib.closing(RolloutRole(setting)))
        case "reward":
            return _prepare_reward(setting, closing)


def _prepare_reward(setting: RoleSetting, closing: ExitStack) -> Callable[[], object]:
    wanted = setting.spec.roles.reward
    match wanted:
        case FunctionReward():
            from hpcflow.roles.reward import FunctionRewardRole

            role = FunctionRewardRole(
                wanted.function,
                timeout_s=wanted.timeout_s,
                processes=wanted.processes,
                # Less than the whole time to get ready, so that the fault names the function.
                start_timeout_s=START_SHARE * setting.spec.health.start_timeout_s,
            )
            closing.callback(role.close)
            return lambda: role
        case ModelReward():
            from hpcflow.roles.reward_model import ModelRewardRole

            return lambda: ModelRewardRole.from_setting(setting)
