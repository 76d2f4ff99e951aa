import msgspec
import numpy as np
import pytest
import zmq

from hpcflow.errors import JobFault, RpcError
from hpcflow.roles import contract
from hpcflow.rpc.wire import Call, Fault, Seal, pack, remote_method, remote_methods, unpack
from tests.support.echo_contract import Arrays, Echo, Seconds, some_arrays

ROLES = [
    contract.Actor,
    contract.Critic,
    contract.Reference,
    contract.Reward,
    contract.Rollout,
]


def through(message: Arrays) -> Arrays:
    body, arrays = pack(message)
    return unpack(body, [memoryview(bytearray(array)) for array in arrays], Arrays)


@pytest.mark.parametrize("shape", [(3, 5), (0, 4), (1, 1), (7, 0), (64, 1000)])
def test_arrays_of_any_shape_come_back_equal(shape: tuple[int, int]) -> None:
    sent = some_arrays(*shape)
    got = through(sent)
    for name in ("floats", "ints", "bools"):
        before, after = sent.__getattribute__(name), got.__getattribute__(name)
        assert after.dtype == before.dtype
        assert after.shape == shape
        assert np.array_equal(after, before)
    assert got.maybe is None


def test_arrays_that_are_not_contiguous_come_back_equal() -> None:
    base = some_arrays(6, 8)
    sent = Arrays(base.floats[::2, ::-1], base.ints.T, base.bools[1:, 3:])
    got = through(sent)
    assert np.array_equal(got.floats, sent.floats)
    assert np.array_equal(got.ints, sent.ints)
    assert np.array_equal(got.bools, sent.bools)


def test_special_floats_survive() -> None:
    floats = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], dtype=np.float32)
    got = through(msgspec.structs.replace(some_arrays(), floats=floats))
    assert got.floats.tobytes() == floats.tobytes()


def test_received_arrays_are_writable_and_aligned() -> None:
    body, arrays = pack(some_arrays())
    shifted = []
    for array in arrays:
        memory = memoryview(bytearray(array.nbytes + 1))
        memory[1:] = array.data
        shifted.append(memory[1:].toreadonly())
    got = unpack(body, shifted, Arrays)
    assert got.ints.flags.writeable
    assert got.ints.flags.aligned
    assert np.array_equal(got.ints, some_arrays().ints)


def test_another_element_type_is_refused() -> None:
    body, arrays = pack(msgspec.structs.replace(some_arrays(), floats=np.zeros(3)))
    with pytest.raises(msgspec.ValidationError, match=r"float32.*floats"):
        unpack(body, [array.data for array in arrays], Arrays)


def test_a_frame_of_the_wrong_size_is_refused() -> None:
    body, arrays = pack(some_arrays())
    frames = [array.data for array in arrays]
    with pytest.raises(msgspec.ValidationError, match="bytes"):
        unpack(body, [frames[0][:-4], *frames[1:]], Arrays)
    with pytest.raises(msgspec.ValidationError, match="no such array frame"):
        unpack(body, frames[:2], Arrays)


def test_objects_are_never_sent() -> None:
    objects = np.array([{}, 1], dtype=object)
    with pytest.raises(TypeError, match="cannot send"):
        pack(msgspec.structs.replace(some_arrays(), floats=objects))


def test_unknown_fields_are_refused() -> None:
    body = msgspec.msgpack.encode({"seconds": 1.0, "minutes": 2.0})
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        unpack(body, [], Seconds)


def sealed(seal: Seal) -> list[bytes]:
    body, arrays = pack(some_arrays())
    return [bytes(part) for part in seal.close(Call(1, "echo", body), arrays)]


def opens(seal: Seal, parts: list[bytes]) -> bool:
    return seal.open([zmq.Frame(part) for part in parts]) is not None


def test_the_token_never_travels() -> None:
    assert all(b"secret" not in part for part in sealed(Seal("secret")))


def test_a_message_opens_only_with_its_own_token() -> None:
    assert opens(Seal("secret"), sealed(Seal("secret")))
    assert not opens(Seal("secret"), sealed(Seal("Secret")))


def test_a_message_that_was_changed_does_not_open() -> None:
    seal = Seal("secret")
    parts = sealed(seal)
    for index in range(len(parts)):
        changed = [*parts]
        changed[index] = bytes([parts[index][0] ^ 1]) + parts[index][1:]
        assert not opens(seal, changed)
    assert not opens(seal, parts[:-1])
    assert not opens(seal, [*parts, b""])
    assert not opens(seal, [*parts[:2], parts[3], parts[2], *parts[4:]])
    # Moving a boundary keeps the bytes, not the lengths.
    moved = [*parts[:2], parts[2] + parts[3][:1], parts[3][1:], *parts[4:]]
    assert not opens(seal, moved)
    assert not opens(seal, [])


@pytest.mark.parametrize("role", ROLES)
def test_every_method_of_every_role_has_types_for_the_wire(role: type) -> None:
    for method in remote_methods(role).values():
        assert issubclass(method.request, msgspec.Struct)
        assert issubclass(method.reply, msgspec.Struct)


def test_methods_without_the_mark_are_not_remote() -> None:
    assert "local" not in remote_methods(Echo)
    with pytest.raises(TypeError, match="not marked"):
        remote_method(Echo.local)


def test_a_fault_keeps_the_cause_of_a_job_fault() -> None:
    fault = Fault.of(RpcError("late", cause="rpc_timeout", role="actor", rank=1, hint="look"))
    assert (fault.cause, fault.message, fault.hint) == ("rpc_timeout", "late", "look")


def test_a_fault_knows_memory_from_other_errors() -> None:
    class OutOfMemoryError(RuntimeError):
        pass

    assert Fault.of(OutOfMemoryError("2 GiB")).cause == "out_of_memory"
    assert Fault.of(MemoryError()).cause == "out_of_memory"
    assert Fault.of(ValueError("x")).cause == "role_error"
    assert Fault.of(JobFault("x", cause="spec", role="actor")).cause == "spec"
