"""Does a message arrive as it was, and is everything else refused before it is believed?"""

import contextlib
import json
import os
import struct
import time

import pytest
import torch

from autograder.engine import protocol
from flashkit.exercises.values import MAX_BYTES, Opaque


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for fd in ends:
        with contextlib.suppress(OSError):
            os.close(fd)


def frame(header, payload=b""):
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return protocol.MAGIC + struct.pack("<I", len(data)) + data + payload


def tensor(shape, dtype="float32", size=None, **more):
    return {"dict": {"x": {"tensor": {"dtype": dtype, "shape": shape, **more}, "bytes": size}}}


def test_values_survive_the_pipe(pipe):
    message = {"a": (1, 2.5, None, True), "b": ["text", {"c": ()}], "d": Opaque("a thing")}
    protocol.send(pipe[1], message)
    assert protocol.receive(pipe[0]) == message


@pytest.mark.parametrize("dtype", protocol.NAMES)
def test_tensors_of_every_dtype_survive_the_pipe(pipe, dtype):
    for x in (torch.arange(6).reshape(2, 3), torch.tensor(1), torch.zeros(0, 3)):
        protocol.send(pipe[1], {"x": x.to(dtype)})
        got = protocol.receive(pipe[0])["x"]
        assert got.dtype == dtype
        assert torch.equal(got, x.to(dtype))


def test_nan_and_inf_survive_the_pipe(pipe):
    protocol.send(pipe[1], {"x": torch.tensor([torch.nan, torch.inf]), "y": float("-inf")})
    got = protocol.receive(pipe[0])
    assert torch.isnan(got["x"][0])
    assert got["y"] == float("-inf")


def test_strides_survive_the_pipe(pipe):
    x = torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2)[:, ::2]
    protocol.send(pipe[1], {"x": x})
    got = protocol.receive(pipe[0])["x"]
    assert got.stride() == x.stride()
    assert torch.equal(got, x)


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense that is no frame at all",
        frame(b"{"),
        frame(b"[" * 50_000),
        frame([1]),
        frame({"pickle": "x"}),
        frame({"dict": [1]}),
        frame({"list": {"a": 1}}),
        frame({"list": []}),
        frame({"a": 1, "b": 2, "c": 3}),
        frame(tensor([2], size=7)),
        frame(tensor([-2], size=-8)),
        frame(tensor([2.0], size=8)),
        frame(tensor([True], size=4)),
        frame(tensor("22", size=8)),
        frame(tensor([1] * 99, size=4)),
        frame(tensor([2], dtype="complex64", size=16)),
        frame(tensor([2], dtype=["float32"], size=8)),
        frame(tensor([MAX_BYTES], size=4 * MAX_BYTES)),
        frame(tensor([2, 2], size=16, strides=[MAX_BYTES, MAX_BYTES])),
        frame(tensor([2, 2], size=16, strides=[-1, 1])),
        frame(tensor([2, 2], size=16, strides=[1])),
        frame({"list": [0] * 5000}),
        protocol.MAGIC + struct.pack("<I", protocol.MAX_HEADER + 1),
    ],
)
def test_what_is_no_message_is_refused(pipe, data):
    os.write(pipe[1], data)
    with pytest.raises(protocol.ProtocolError):
        protocol.receive(pipe[0], time.monotonic() + 10)


def test_silence_ends_at_the_deadline(pipe):
    with pytest.raises(protocol.TimedOut):
        protocol.receive(pipe[0], time.monotonic() + 0.05)


def test_half_a_message_ends_at_the_deadline(pipe):
    os.write(pipe[1], frame(tensor([2], size=8), b"1234"))
    with pytest.raises(protocol.TimedOut):
        protocol.receive(pipe[0], time.monotonic() + 0.05)


def test_a_closed_end_is_told(pipe):
    os.close(pipe[1])
    with pytest.raises(protocol.Died):
        protocol.receive(pipe[0])


def test_nobody_reading_is_told(pipe):
    os.close(pipe[0])
    with pytest.raises(protocol.Died):
        protocol.send(pipe[1], {"x": 1})


def test_a_reader_that_sleeps_does_not_block_the_sender(pipe):
    os.set_blocking(pipe[1], False)
    with pytest.raises(protocol.TimedOut):
        protocol.send(pipe[1], {"x": torch.zeros(10**6)}, time.monotonic() + 0.05)
