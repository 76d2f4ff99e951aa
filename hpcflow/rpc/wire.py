"""The wire format: a MAC, a msgpack header, and one raw frame per numpy array.

    frame 0     BLAKE2b over lengths and contents of all later frames, keyed by the run's token
    frame 1     a msgspec Struct: `Call`, `Reply` or a control message; arrays are references
    frame 2...  the arrays' bytes, C order

Nothing is unpickled; what arrives is decoded into the declared types or refused. Arrays are copied
once when sent, so that the caller may go on writing into them, and are views of the received frame
on the other side.
"""

from __future__ import annotations

import hmac
import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
import numpy as np
import zmq

from hpcflow.errors import JobFault

T = TypeVar("T")
Frames = Sequence[memoryview]

_MAC_BYTES = 32


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a call failed: the exception's type and message, and the cause for the exit report."""

    type: str
    message: str
    cause: str
    hint: str = ""

    @staticmethod
    def of(error: BaseException) -> Fault:
        """A fault's own cause; `out_of_memory` where memory ran out; else `role_error`."""
        name = type(error).__name__
        if isinstance(error, JobFault):
            return Fault(type=name, message=error.message, cause=error.cause, hint=error.hint)
        # CUDA's error is told by its name, because torch is not imported on this side.
        short = isinstance(error, MemoryError) or name == "OutOfMemoryError"
        message = f"{name}: {error}" if str(error) else name
        return Fault(type=name, message=message, cause="out_of_memory" if short else "role_error")


class Call(msgspec.Struct, frozen=True, tag="call", forbid_unknown_fields=True):
    """A call of one method; `body` is the encoded request."""

    id: int
    method: str
    body: msgspec.Raw


class Reply(msgspec.Struct, frozen=True, tag="reply", forbid_unknown_fields=True):
    """The answer to a call: the encoded result in `body`, or a fault.

    `seconds` is the time in the handler; `resident_bytes` is the memory of the serving process and
    its descendants.
    """

    id: int
    seconds: float
    resident_bytes: int
    body: msgspec.Raw = msgspec.Raw(b"\xc0")
    fault: Fault | None = None


class _ArrayRef(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    frame: int


@dataclass(frozen=True)
class RemoteMethod:
    """A method of a contract that is marked `@remote`, with the types of its request and reply."""

    name: str
    request: Any
    reply: Any


@cache
def remote_method(function: Callable[..., object]) -> RemoteMethod:
    """Types of a `@remote` Protocol method, from its annotations.

    Raises:
        TypeError: the function is not marked, or does not take exactly one request.
    """
    if function.__dict__.get("remote") is not True:
        raise TypeError(f"{function.__qualname__} is not marked @remote")
    hints = typing.get_type_hints(function)
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != 2 or set(hints) != {parameters[1], "return"}:
        raise TypeError(f"{function.__qualname__} must take one annotated request, return one reply")
    return RemoteMethod(function.__name__, hints[parameters[1]], hints["return"])


def remote_methods(contract: type) -> dict[str, RemoteMethod]:
    """All methods of a contract that may be called over RPC."""
    functions = (item for item in vars(contract).values() if inspect.isfunction(item))
    found = [remote_method(item) for item in functions if "remote" in item.__dict__]
    return {method.name: method for method in found}


def pack(value: object) -> tuple[msgspec.Raw, list[np.ndarray[Any, Any]]]:
    """Encode a message; returns its header and the arrays, as flat bytes, that it refers to.

    Raises:
        TypeError: a value is neither a msgspec type nor a plain numeric or boolean array.
    """
    arrays: list[np.ndarray[Any, Any]] = []

    def refer(item: object) -> _ArrayRef:
        if not isinstance(item, np.ndarray) or item.dtype.kind not in "biuf":
            raise TypeError(f"cannot send {type(item).__name__} {item!r:.80}")
        flat = item if item.flags.c_contiguous else item.copy(order="C")
        arrays.append(flat.reshape(-1).view(np.uint8))
        return _ArrayRef(item.dtype.str, item.shape, len(arrays) - 1)

    return msgspec.Raw(msgspec.msgpack.encode(value, enc_hook=refer)), arrays


def unpack(body: bytes | msgspec.Raw, arrays: Frames, expected: type[T]) -> T:
    """Decode a message into its declared type.

    Raises:
        msgspec.ValidationError: the message does not fit the type, or an array does not fit its
        frame.
    """

    def resolve(wanted: Any, item: object) -> object:  # noqa: ANN401 - an annotation
        if (typing.get_origin(wanted) or wanted) is not np.ndarray:
            raise TypeError(f"cannot receive {wanted}")
        return _array(msgspec.convert(item, _ArrayRef), arrays, wanted)

    return msgspec.msgpack.decode(body, type=expected, dec_hook=resolve)


def _array(ref: _ArrayRef, arrays: Frames, wanted: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401
    dtype = np.dtype(ref.dtype)
    arguments = typing.get_args(wanted)
    scalar = typing.get_args(arguments[1])[0] if arguments else Any
    if dtype.kind not in "biuf" or (scalar is not Any and dtype != np.dtype(scalar)):
        raise TypeError(f"expected an array of {scalar}, got {dtype}")
    if not 0 <= ref.frame < len(arrays) or min(ref.shape, default=0) < 0:
        raise ValueError(f"no such array frame: {ref}")
    frame = arrays[ref.frame]
    if frame.nbytes != dtype.itemsize * int(np.prod(ref.shape, dtype=np.int64)):
        raise ValueError(f"array of shape {ref.shape} and type {dtype} in {frame.nbytes} bytes")
    array: np.ndarray[Any, Any] = np.ndarray(ref.shape, dtype, buffer=frame)
    # The carrier packs small frames anywhere in its buffer; torch wants aligned, writable memory.
    return array if array.flags.aligned and array.flags.writeable else array.copy()


class Seal:
    """Puts the MAC before the frames of a message, and checks it on arrival."""

    def __init__(self, token: str) -> None:
        self._key = blake2b(token.encode()).digest()

    def close(
        self, header: msgspec.Struct, arrays: Sequence[np.ndarray[Any, Any]] = ()
    ) -> list[bytes | memoryview]:
        """All frames of a message, ready to send."""
        encoded = msgspec.msgpack.encode(header)
        views = [memoryview(encoded), *(array.data for array in arrays)]
        return [self._mac(views), *views]

    def open(self, frames: Sequence[zmq.Frame]) -> Frames | None:
        """Header and arrays of a message; None where it was not made with this run's token."""
        views = [frame.buffer for frame in frames]
        if len(views) < 2 or not hmac.compare_digest(views[0], self._mac(views[1:])):
            return None
        return views[1:]

    def _mac(self, views: Frames) -> bytes:
        mac = blake2b(key=self._key, digest_size=_MAC_BYTES)
        for view in views:
            mac.update(view.nbytes.to_bytes(8, "little"))
            mac.update(view)
        return mac.digest()
