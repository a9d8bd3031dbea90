"""The wire format: what goes in comes out, exact to the byte; everything else is refused before it costs anything."""

from __future__ import annotations

from contextlib import suppress

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from physis_client import wire
from physis_client.errors import InvalidAction, PhysisError, TooLarge
from physis_client.wire import WireError

ARRAYS = st.sampled_from(wire.DTYPES).flatmap(
    lambda dtype: npst.arrays(np.dtype(dtype), npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


@given(ARRAYS)
def test_an_array_comes_back_the_same_writable_and_its_own(array):
    back = wire.decode(wire.encode({"a": array}))["a"]
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == np.ascontiguousarray(array).tobytes()
    assert back.flags.writeable
    assert back.flags.c_contiguous


def test_byte_order_and_layout_are_made_canonical():
    array = np.arange(6, dtype=">f4").reshape(2, 3).T
    packed = wire.pack_array(array)
    assert (packed["dtype"], packed["shape"]) == ("<f4", [3, 2])
    assert (wire.unpack_array(packed) == array).all()


def test_the_wire_names_are_these():
    """A contract: other languages read these letters."""
    packed = wire.pack_array(np.zeros((1, 2), np.uint8))
    assert packed == {"__nd__": True, "dtype": "|u1", "shape": [1, 2], "data": b"\x00\x00"}
    assert wire.DTYPES == ("|u1", "<f4", "<f8", "<i4", "<i8")
    assert wire.VERSION == 1
    assert wire.CONTENT_TYPE == "application/msgpack"


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint16, np.bool_, np.complex64, object, "U3", "M8[s]"])
def test_other_dtypes_do_not_travel(dtype):
    with pytest.raises(WireError):
        wire.encode({"a": np.zeros(2, dtype)})


GOOD = {"__nd__": True, "dtype": "|u1", "shape": [2], "data": b"ab"}
BAD = [
    {**GOOD, "data": b"a"},
    {**GOOD, "data": b"abc"},
    {**GOOD, "data": "ab"},
    {**GOOD, "shape": [3]},
    {**GOOD, "shape": [-2]},
    {**GOOD, "shape": [2.0]},
    {**GOOD, "shape": [True, 2]},
    {**GOOD, "shape": 2},
    {**GOOD, "shape": [1] * 9},
    {**GOOD, "shape": [2**62, 2**62]},
    {**GOOD, "shape": [0, -1]},
    {**GOOD, "dtype": "|O"},
    {**GOOD, "dtype": ">f4"},
    {**GOOD, "dtype": "<f2"},
    {**GOOD, "dtype": 3},
    {**GOOD, "dtype": ["|u1"]},
    {**GOOD, "__nd__": 1},
    {**GOOD, "__nd__": False},
    {**GOOD, "more": 1},
    {"__nd__": True},
]


@pytest.mark.parametrize("message", BAD, ids=str)
def test_an_array_that_is_not_exact_is_refused(message):
    with pytest.raises(WireError):
        wire.decode(msgpack.packb({"a": message}))


def test_a_claimed_size_allocates_nothing():
    with pytest.raises(WireError, match="bytes, got"):
        wire.unpack_array({**GOOD, "shape": [2**40]})


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x93\x01", b"\x01", b"\x81\x01\x02", msgpack.packb([1]), msgpack.packb({b"k": 1}),
     b"\xdf" + b"\xff" * 4,
     b"\xc7\x05\x01" + b"x" * 5, b"\x91" * 5000, msgpack.packb({"s": b"\xff"})[:-1], b"\xa2\xff\xfe"],
)  # fmt: skip
def test_what_is_not_a_message_is_refused(data):
    with pytest.raises(WireError):
        wire.decode(data)


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_no_bytes_at_all_raise_anything_but_a_typed_error(data):
    with suppress(PhysisError):
        assert isinstance(wire.decode(data), dict)


def test_a_message_beyond_the_limit_is_refused_before_it_is_read():
    with pytest.raises(TooLarge):
        wire.decode(b"\x00" * 11, max_bytes=10)


@pytest.mark.parametrize("value", [object(), {1: object()}, 2**70, {"a": {1, 2}}])
def test_what_does_not_travel_is_refused_on_the_way_out(value):
    with pytest.raises(WireError):
        wire.encode({"v": value})


def test_numbers_of_numpy_travel_as_numbers():
    assert wire.decode(wire.encode({"a": np.float32(0.5), "b": np.int64(3)})) == {"a": 0.5, "b": 3}


@pytest.mark.parametrize(
    "action", [[0.5, 1], (0, 1), np.array([0.5, 1.0]), np.array([1, 2]), np.float32([0.25])], ids=repr
)
def test_an_action_is_one_row_of_numbers(action):
    numbers = wire.action_numbers(action)
    assert numbers == [float(x) for x in action]
    assert all(type(x) is float for x in numbers)


@pytest.mark.parametrize(
    "action",
    [None, 3, "12", b"12", [[1.0]], ["1"], [None], [True], [1j], {"x": 1}, [float("nan")], [float("-inf")],
     [[1], [1, 2]], np.zeros((2, 2)), np.array(["a"]), object()],
    ids=repr,
)  # fmt: skip
def test_anything_else_is_an_invalid_action(action):
    with pytest.raises(InvalidAction):
        wire.action_numbers(action)
