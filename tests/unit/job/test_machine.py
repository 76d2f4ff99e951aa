import signal

import pytest

from hpcflow.job.machine import Action, Limits, Machine
from hpcflow.job.verdict import THE_DRIVER, Evidence, Member, Verdict, death, reported

ACTOR, PEER, REWARD = Member("actor", 0), Member("actor", 1), Member("reward", 0)
ROLES = [ACTOR, PEER, REWARD]
LIMITS = Limits(start_s=100, stop_s=50, preemption_s=30, silent_s=120)
KILL, TERM, INT, USR2, ABRT = (
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGUSR2,
    signal.SIGABRT,
)
ENDING = [Action.RELEASE, Action.TERMINATE]


def running() -> Machine:
    machine = Machine(ROLES, LIMITS, now=0)
    for member in ROLES:
        assert machine.ready(member) == []
    return machine


def told(machine: Machine, reporter: Member, at: Member, cause: str, now: float) -> None:
    assert machine.fault(reporter, reported(at, cause, "it broke", hint="", at=now)) == []


def verdict(machine: Machine) -> Verdict:
    assert machine.verdict is not None
    return machine.verdict


def blamed(machine: Machine) -> tuple[Member, str]:
    assert verdict(machine).outcome == "failed"
    return verdict(machine).evidence.member, verdict(machine).evidence.cause


def test_a_driver_that_is_done_releases_the_roles() -> None:
    machine = running()
    assert machine.exited(THE_DRIVER, 0, 10) == [Action.RELEASE]
    assert verdict(machine).outcome == "done"
    assert machine.alive == set(ROLES)
    for member in ROLES:
        assert machine.exited(member, 0, 11) == []
    assert machine.over
    assert verdict(machine).outcome == "done"


def test_released_roles_that_stay_are_killed() -> None:
    machine = running()
    machine.exited(THE_DRIVER, 0, 10)
    assert machine.tick(10 + LIMITS.leave_s - 0.1) == []
    assert machine.tick(10 + LIMITS.leave_s) == [Action.KILL]


def test_a_death_ends_the_attempt_at_once() -> None:
    machine = running()
    assert machine.exited(PEER, -KILL, 10) == []
    assert machine.tick(10) == ENDING
    assert blamed(machine) == (PEER, "killed")
    assert machine.tick(10 + LIMITS.end_s) == [Action.KILL]
    assert LIMITS.settle_s + LIMITS.end_s < 5


def test_a_death_by_a_signal_without_a_name_is_told() -> None:
    assert death(THE_DRIVER, -40, 0.0).message.endswith(" was ended by signal 40")


def test_an_exit_code_is_kept() -> None:
    machine = running()
    machine.exited(PEER, 42, 10)
    machine.tick(10)
    assert blamed(machine) == (PEER, "exited")
    assert verdict(machine).evidence.status == 42


def test_a_clean_exit_of_a_role_before_its_release_is_a_failure() -> None:
    machine = running()
    machine.exited(REWARD, 0, 10)
    machine.tick(10)
    assert blamed(machine) == (REWARD, "exited")


def test_a_death_that_is_seen_after_its_consequence_is_the_cause() -> None:
    machine = running()
    told(machine, THE_DRIVER, ACTOR, "role_error", 10.0)
    assert machine.tick(10.1) == []
    machine.exited(THE_DRIVER, 3, 10.2)
    machine.exited(PEER, -KILL, 10.8)
    assert machine.tick(10.8) == ENDING
    assert blamed(machine) == (PEER, "killed")


def test_a_death_that_is_seen_before_its_consequence_is_the_cause() -> None:
    machine = running()
    machine.exited(PEER, 42, 10.0)
    told(machine, THE_DRIVER, ACTOR, "role_error", 10.0)
    machine.tick(10.0)
    assert blamed(machine) == (PEER, "exited")


def test_a_death_by_signal_outranks_an_exit_seen_at_the_same_time() -> None:
    machine = running()
    machine.exited(THE_DRIVER, 1, 10)
    machine.exited(PEER, -KILL, 10)
    machine.tick(10)
    assert blamed(machine) == (PEER, "killed")


def test_a_time_out_that_the_driver_reports_names_the_rank() -> None:
    machine = running()
    told(machine, THE_DRIVER, PEER, "rpc_timeout", 10)
    machine.exited(THE_DRIVER, 3, 10.1)
    assert machine.tick(10.5) == []
    assert machine.tick(11.1) == ENDING
    assert blamed(machine) == (PEER, "rpc_timeout")


def test_a_role_error_outranks_the_time_out_that_came_first() -> None:
    machine = running()
    told(machine, THE_DRIVER, ACTOR, "rpc_timeout", 10.0)
    told(machine, PEER, PEER, "role_error", 10.5)
    machine.tick(11.1)
    assert blamed(machine) == (PEER, "role_error")


def test_a_fault_of_data_outranks_the_aborts_that_follow() -> None:
    machine = running()
    told(machine, ACTOR, ACTOR, "data", 10.0)
    machine.exited(PEER, -ABRT, 10.0)
    machine.exited(ACTOR, 3, 10.0)
    machine.tick(10.0)
    assert blamed(machine) == (ACTOR, "data")


def test_an_abort_alone_is_named_after_a_moment() -> None:
    machine = running()
    machine.exited(PEER, -ABRT, 10.0)
    assert machine.tick(10.5) == []
    machine.tick(11.0)
    assert blamed(machine) == (PEER, "killed")


def test_the_exit_of_a_process_that_said_why_is_no_news() -> None:
    machine = running()
    told(machine, ACTOR, ACTOR, "role_error", 10.0)
    machine.exited(ACTOR, 3, 10.1)
    machine.tick(11.1)
    assert blamed(machine) == (ACTOR, "role_error")
    assert machine.statuses[ACTOR] == 3


def test_deaths_while_ending_change_nothing() -> None:
    machine = running()
    machine.exited(PEER, 42, 10)
    machine.tick(10)
    for member in (ACTOR, REWARD, THE_DRIVER):
        machine.exited(member, -TERM, 11)
    told(machine, THE_DRIVER, ACTOR, "non_finite", 11)
    assert machine.over
    assert blamed(machine) == (PEER, "exited")


def test_a_rank_that_is_not_ready_in_time_is_named() -> None:
    machine = Machine(ROLES, LIMITS, now=0)
    machine.ready(ACTOR)
    assert machine.tick(99.9) == []
    assert machine.tick(100) == ENDING
    assert blamed(machine) == (PEER, "start_timeout")
    assert verdict(machine).evidence.message.endswith("actor rank 1, reward rank 0")


def test_a_process_without_heartbeats_is_named() -> None:
    machine = running()
    machine.beat(ACTOR, 10)
    machine.beat(THE_DRIVER, 10)
    machine.beat(THE_DRIVER, 100)
    assert machine.tick(10 + LIMITS.silent_s) == []
    machine.tick(10.1 + LIMITS.silent_s)
    machine.tick(11.2 + LIMITS.silent_s)
    assert blamed(machine) == (ACTOR, "silent")


def test_a_request_to_stop_is_passed_to_the_driver_once() -> None:
    machine = running()
    assert machine.requested(USR2, 10) == [Action.ASK_DRIVER]
    assert machine.requested(TERM, 11) == []
    assert machine.signalled(TERM, 12) == []
    assert machine.exited(THE_DRIVER, 75, 20) == [Action.RELEASE]
    assert verdict(machine).outcome == "stopped"
    assert verdict(machine).evidence.cause == "stopped"


def test_a_driver_that_stops_by_itself_is_stopped() -> None:
    machine = running()
    assert machine.exited(THE_DRIVER, 75, 20) == [Action.RELEASE]
    assert verdict(machine).outcome == "stopped"


def test_before_all_are_ready_a_request_ends_the_attempt() -> None:
    machine = Machine(ROLES, LIMITS, now=0)
    assert machine.requested(INT, 1) == ENDING
    assert verdict(machine).outcome == "stopped"


def test_a_second_request_kills_at_once() -> None:
    machine = running()
    machine.requested(INT, 10)
    assert machine.requested(INT, 11) == [Action.RELEASE, Action.KILL]
    assert verdict(machine).outcome == "stopped"
    assert verdict(machine).evidence.cause == "aborted"


def test_a_second_request_while_roles_leave_keeps_the_verdict() -> None:
    machine = running()
    machine.requested(INT, 10)
    machine.exited(THE_DRIVER, 75, 11)
    assert Action.KILL in machine.requested(INT, 12)
    assert verdict(machine).evidence.cause == "stopped"


def test_a_driver_that_does_not_stop_in_time_is_a_failure() -> None:
    machine = running()
    machine.requested(INT, 10)
    assert machine.tick(59) == []
    machine.tick(60)
    assert blamed(machine) == (THE_DRIVER, "stop_timeout")


def test_a_death_during_a_stop_without_term_is_a_failure() -> None:
    machine = running()
    machine.requested(INT, 10)
    machine.exited(PEER, -KILL, 11)
    machine.tick(11)
    assert blamed(machine) == (PEER, "killed")


def test_a_death_after_term_is_part_of_the_preemption() -> None:
    machine = running()
    assert machine.signalled(TERM, 10) == [Action.ASK_DRIVER]
    machine.exited(PEER, -KILL, 20)
    assert machine.tick(21) == []
    machine.exited(THE_DRIVER, 75, 25)
    assert verdict(machine).outcome == "stopped"
    assert verdict(machine).evidence.cause == "stopped"


def test_a_driver_that_fails_under_preemption_leaves_a_stopped_run() -> None:
    machine = running()
    machine.signalled(TERM, 10)
    machine.exited(PEER, -KILL, 20)
    told(machine, THE_DRIVER, PEER, "rpc_timeout", 21)
    machine.exited(THE_DRIVER, 3, 21)
    assert verdict(machine).outcome == "stopped"
    assert verdict(machine).evidence.cause == "preempted"


def test_a_report_of_term_that_is_older_than_the_grace_excuses_nothing() -> None:
    machine = running()
    machine.signalled(TERM, 10)
    machine.exited(PEER, -KILL, 10 + LIMITS.preemption_s)
    machine.tick(10 + LIMITS.preemption_s)
    assert blamed(machine) == (PEER, "killed")


def test_a_driver_that_waits_for_a_preempted_rank_is_not_to_blame() -> None:
    machine = running()
    machine.signalled(TERM, 10)
    machine.exited(PEER, -KILL, 20)
    assert machine.tick(60) == ENDING
    assert verdict(machine).outcome == "stopped"


def test_a_driver_that_could_not_listen_yet_is_stopped() -> None:
    machine = running()
    machine.requested(INT, 10)
    machine.exited(THE_DRIVER, -USR2, 10.1)
    assert verdict(machine).outcome == "stopped"


def test_an_unknown_cause_is_an_error_of_the_role() -> None:
    assert reported(ACTOR, "bad luck", "x", hint="", at=0).cause == "role_error"
    assert isinstance(reported(ACTOR, "data", "x", hint="", at=0), Evidence)


STEP = Member("step_actor", 0)


def lost_step(machine: Machine, now: float) -> None:
    evidence = Evidence(STEP, "step_failed", "node2 is gone", now, host="node2")
    assert machine.step_ended(STEP, [ACTOR, PEER], evidence, now) == []


def test_a_step_that_ends_under_its_ranks_is_the_cause() -> None:
    machine = Machine(ROLES, LIMITS, now=0, steps=[STEP])
    lost_step(machine, 5)
    machine.tick(5)
    assert blamed(machine) == (STEP, "step_failed")
    assert verdict(machine).evidence.host == "node2"
    assert not machine.alive & {STEP, ACTOR, PEER}


def test_a_step_whose_ranks_have_ended_says_nothing_new() -> None:
    machine = Machine(ROLES, LIMITS, now=0, steps=[STEP])
    machine.exited(ACTOR, -KILL, 5)
    machine.exited(PEER, 0, 5)
    lost_step(machine, 5)
    machine.tick(5)
    assert blamed(machine) == (ACTOR, "killed")


def test_a_rank_whose_end_is_told_after_its_step_ended_adds_nothing() -> None:
    machine = Machine(ROLES, LIMITS, now=0, steps=[STEP])
    lost_step(machine, 5)
    assert machine.exited(ACTOR, -KILL, 5) == []
    machine.tick(5)
    assert blamed(machine) == (STEP, "step_failed")


def test_a_step_that_ends_after_term_is_part_of_the_preemption() -> None:
    machine = running()
    machine.alive.add(STEP)
    machine.signalled(TERM, 10)
    lost_step(machine, 20)
    assert machine.tick(21) == []


def test_an_attempt_is_over_when_its_steps_are_gone() -> None:
    machine = Machine(ROLES, LIMITS, now=0, steps=[STEP])
    for member in (*ROLES, THE_DRIVER):
        machine.exited(member, 0, 5)
    machine.tick(6)
    assert not machine.over
    lost_step(machine, 7)
    assert machine.over


@pytest.mark.parametrize(("signums", "by_person"), [([INT], True), ([TERM], False), ([USR2, INT], False)])
def test_only_the_first_request_tells_who_asked(signums: list[int], by_person: bool) -> None:
    machine = running()
    for signum in signums:
        machine.requested(signum, 10)
    assert machine.stopped_by_person is by_person


SERVER, BOARD, STEP_OF_BOARD = Member("server", 0), Member("board", 0), Member("step_board", 0)


def with_commands() -> Machine:
    """Besides the roles an essential command that is not ready, and an optional one in a step of its own."""
    members = [*ROLES, SERVER, BOARD]
    machine = Machine(members, LIMITS, 0, steps=[STEP_OF_BOARD], optional={"board", "step_board"})
    for member in ROLES:
        machine.ready(member)
    return machine


def test_an_essential_command_is_waited_for_and_an_optional_one_is_not() -> None:
    machine = with_commands()
    assert machine.not_ready == {SERVER}
    assert machine.tick(LIMITS.start_s) == ENDING
    assert blamed(machine) == (SERVER, "start_timeout")
    machine = with_commands()
    machine.ready(SERVER)
    assert machine.tick(LIMITS.start_s) == []
    assert machine.requested(USR2, LIMITS.start_s) == [Action.ASK_DRIVER]


@pytest.mark.parametrize("status", [0, 42, -KILL])
def test_an_essential_command_that_ends_ends_the_attempt(status: int) -> None:
    machine = with_commands()
    machine.ready(SERVER)
    machine.exited(SERVER, status, 10)
    assert machine.tick(10) == ENDING
    assert blamed(machine) == (SERVER, "killed" if status < 0 else "exited")
    assert machine.gone == {}


def test_the_end_of_an_optional_command_is_noted_and_nothing_else() -> None:
    machine = with_commands()
    machine.ready(SERVER)
    assert machine.exited(BOARD, 42, 10) == []
    assert machine.tick(100) == []
    assert machine.verdict is None
    assert machine.gone == {BOARD: "board rank 0 ended with exit code 42 without a fault report"}
    assert machine.exited(THE_DRIVER, 0, 110) == [Action.RELEASE]
    assert verdict(machine).outcome == "done"


def test_the_fault_of_an_optional_command_is_kept_as_the_reason() -> None:
    machine = with_commands()
    told(machine, BOARD, BOARD, "start_timeout", 10)
    machine.exited(BOARD, 3, 11)
    assert machine.tick(20) == []
    assert machine.gone == {BOARD: "it broke"}


def test_a_step_that_holds_only_what_is_optional_may_fail() -> None:
    machine = with_commands()
    told(machine, STEP_OF_BOARD, Member("board", -1), "step_failed", 5)
    failed = Evidence(STEP_OF_BOARD, "step_failed", "no such node", 10)
    assert machine.step_ended(STEP_OF_BOARD, [BOARD], failed, 10) == []
    assert machine.tick(20) == []
    assert machine.gone == {Member("board", -1): "it broke", BOARD: "no such node"}
    assert not {BOARD, STEP_OF_BOARD} & machine.alive


def test_a_step_with_something_essential_may_not() -> None:
    machine = with_commands()
    failed = Evidence(STEP_OF_BOARD, "step_failed", "no such node", 10)
    machine.step_ended(STEP_OF_BOARD, [BOARD, SERVER], failed, 10)
    machine.tick(10 + LIMITS.settle_s)
    assert blamed(machine) == (STEP_OF_BOARD, "step_failed")


def test_an_optional_command_may_be_silent() -> None:
    machine = with_commands()
    machine.ready(SERVER)
    machine.beat(BOARD, 1)
    assert machine.tick(10 * LIMITS.silent_s) == []
    machine.beat(SERVER, 1)
    machine.tick(10 * LIMITS.silent_s)
    machine.tick(11 * LIMITS.silent_s)
    assert blamed(machine) == (SERVER, "silent")


def test_an_optional_command_that_ended_before_a_stop_does_not_explain_a_late_driver() -> None:
    machine = with_commands()
    machine.ready(SERVER)
    machine.exited(BOARD, 0, 5)
    machine.requested(INT, 10)
    machine.tick(10 + LIMITS.stop_s)
    machine.tick(11 + LIMITS.stop_s)
    assert blamed(machine) == (THE_DRIVER, "stop_timeout")


def test_what_dies_of_a_preemption_is_not_missed() -> None:
    machine = with_commands()
    machine.ready(SERVER)
    machine.signalled(TERM, 10)
    assert machine.exited(BOARD, -TERM, 10) == []
    assert machine.exited(SERVER, -TERM, 10) == []
    assert machine.tick(11) == []
    assert (machine.gone, machine.verdict) == ({}, None)


def test_what_is_ended_with_the_attempt_is_not_missed() -> None:
    machine = with_commands()
    machine.exited(THE_DRIVER, 0, 10)
    machine.exited(BOARD, -TERM, 11)
    told(machine, BOARD, BOARD, "start_timeout", 11)
    assert machine.gone == {}
