"""Messages between supervisor and worker: a JSON header, then the raw bytes of its tensors.

A frame is MAGIC, the header's length (4 bytes, little-endian), the header, the tensors one after
another. Everything in a header is checked before anything is allocated; nothing is ever unpickled.
"""

import json
import math
import os
import select
import struct
import time
from typing import Any

import torch

from flashkit.exercises.inputs import place
from flashkit.exercises.values import MAX_BYTES, MAX_TEXT, Opaque

MAGIC = b"FKW1"
MAX_HEADER = 2**20
MAX_DEPTH = 12
MAX_NODES = 4096
MAX_NDIM = 8
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class ProtocolError(Exception):
    """The other side sent something that is no message."""


class Died(Exception):
    """The other side closed its end."""


class TimedOut(Exception):
    """The other side did not answer by the deadline."""


def encode(message: dict[str, Any]) -> bytes:
    """The frame of a message of plain values (see `flashkit.exercises.values`)."""
    tensors: list[bytes] = []
    header = json.dumps(_to_json(message, tensors)).encode()
    return b"".join([MAGIC, struct.pack("<I", len(header)), header, *tensors])


def _to_json(value: Any, tensors: list[bytes]) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in NAMES:
        tensors.append(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        strides = None if value.is_contiguous() else list(value.stride())
        tensor = {"dtype": NAMES[value.dtype], "shape": list(value.shape), "strides": strides}
        return {"tensor": tensor, "bytes": len(tensors[-1])}
    if isinstance(value, torch.Tensor):
        return {"opaque": f"a tensor of dtype {value.dtype}"}
    if isinstance(value, Opaque):
        return {"opaque": value.what}
    if isinstance(value, dict):
        return {"dict": {key: _to_json(x, tensors) for key, x in value.items()}}
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_to_json(x, tensors) for x in value]}
    return value


class _Decoder:
    """Turns one header into a value, reading tensors from `read` as it meets them."""

    def __init__(self, read):
        self.read, self.nodes, self.bytes = read, 0, 0

    def value(self, node: Any, depth: int = 0) -> Any:
        self.nodes += 1
        _require(depth <= MAX_DEPTH and self.nodes <= MAX_NODES, "too deep or too large")
        if node is None or type(node) in (bool, int, float):
            return node
        if type(node) is str:
            return node[:MAX_TEXT]
        _require(type(node) is dict and len(node) in (1, 2), "an unknown node")
        kind, content = next(iter(node.items()))
        if kind == "tensor":
            return self.tensor(content, node.get("bytes"))
        if kind == "opaque" and type(content) is str:
            return Opaque(content[:MAX_TEXT])
        if kind == "dict" and type(content) is dict:
            return {key[:MAX_TEXT]: self.value(x, depth + 1) for key, x in content.items()}
        _require(kind in ("tuple", "list") and type(content) is list, "an unknown node")
        return (tuple if kind == "tuple" else list)(self.value(x, depth + 1) for x in content)

    def tensor(self, spec: Any, size: Any) -> torch.Tensor:
        _require(type(spec) is dict, "no tensor")
        dtype, shape, strides = (spec.get(name) for name in ("dtype", "shape", "strides"))
        _require(type(dtype) is str and dtype in DTYPES, "an unknown dtype")
        dtype = DTYPES[dtype]
        _require(_are_sizes(shape), "no shape")
        _require(size == math.prod(shape) * dtype.itemsize, "bytes that do not fit the shape")
        self.bytes += size + (_span(shape, strides) * dtype.itemsize if strides else 0)
        _require(self.bytes <= 2 * MAX_BYTES, "too many bytes")
        data = self.read(size)
        x = torch.frombuffer(bytearray(data), dtype=dtype) if size else torch.empty(0, dtype=dtype)
        return place(x.reshape(shape), tuple(strides)) if strides else x.reshape(shape)


def _are_sizes(sizes: Any) -> bool:
    return (
        type(sizes) is list
        and len(sizes) <= MAX_NDIM
        and all(type(n) is int and 0 <= n <= MAX_BYTES for n in sizes)
    )


def _span(shape: list[int], strides: Any) -> int:
    """Elements that a tensor of these strides reaches over."""
    _require(_are_sizes(strides) and len(strides) == len(shape), "no strides")
    return 1 + sum(max(n - 1, 0) * stride for n, stride in zip(shape, strides, strict=True))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ProtocolError(message)


def send(fd: int, message: dict[str, Any], deadline: float | None = None) -> None:
    """Write a message; TimedOut at the deadline (time.monotonic), Died if nobody reads."""
    data = memoryview(encode(message))
    while data:
        _wait(fd, select.POLLOUT, deadline)
        try:
            data = data[os.write(fd, data[:65536]) :]
        except BrokenPipeError:
            raise Died from None


def receive(fd: int, deadline: float | None = None) -> dict[str, Any]:
    """Read a message; ProtocolError, TimedOut or Died if there is none."""

    def read(size: int) -> bytes:
        return _read(fd, size, deadline)

    _require(read(len(MAGIC)) == MAGIC, "no frame")
    (length,) = struct.unpack("<I", read(4))
    _require(length <= MAX_HEADER, "too long a header")
    try:
        header = json.loads(read(length))
    except (ValueError, RecursionError):
        raise ProtocolError("a header that is no JSON") from None
    message = _Decoder(read).value(header)
    _require(type(message) is dict, "no message")
    return message


def _read(fd: int, size: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        _wait(fd, select.POLLIN, deadline)
        part = os.read(fd, min(size - len(parts), 2**20))
        if not part:
            raise Died
        parts += part
    return bytes(parts)


def _wait(fd: int, event: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(fd, event)
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    if not poll.poll(None if left is None else left * 1000):
        raise TimedOut
