"""Is a reply held to type, shape, dtype and a budget of its own for every row?"""

import pytest
import torch

from flashkit import online
from flashkit.exercises import EXERCISES, oracle
from flashkit.exercises.calling import call
from flashkit.exercises.inputs import attention_calls
from flashkit.exercises.judge import Part, attention_limit, budget, wrong_entries
from flashkit.exercises.marking import run_case
from flashkit.exercises.model import Case

BLOCKS = {"query_offset": None, "block_m": 16, "block_n": 16}


class Odd(torch.Tensor):
    """A subclass may answer every comparison as it likes."""


def right(q, k, v, offset=None, *blocks):
    positions = None if offset is None else offset + torch.arange(q.shape[2])
    return online.online_attention(q, k, v, positions)


def judged(reply, params=None, args=None):
    """The result of a case whose right answer is replaced by reply(o)."""
    case = Case("x", "y", {"Hq": 2, "Hkv": 2, "T": 5, "S": 9, **(params or {})}, args or BLOCKS)
    exercise = EXERCISES["flash_attention"]
    return run_case(exercise, case, 3, lambda x: call(lambda *a: reply(right(*a)), x))


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (lambda o: o, ""),
        (lambda o: o * torch.nan, "nan"),
        (lambda o: torch.where(o == o.max(), torch.nan, o), "1 of 160 entries"),
        (lambda o: o.double(), "dtype torch.float64"),
        (lambda o: o.half(), "dtype torch.float16"),
        (lambda o: o[..., :1], "shape (1, 2, 5, 1)"),
        (lambda o: o[0], "shape (2, 5, 16)"),
        (lambda o: o.mean(), "shape ()"),
        (lambda o: 0.0, "the float 0.0"),
        (lambda o: [o], "a list of 1"),
        (lambda o: o.numpy(), "an object of type ndarray"),
        (lambda o: o.as_subclass(Odd), "an object of type Odd"),
        (lambda o: torch.nn.Parameter(o), "an object of type Parameter"),
        (lambda o: o.to_sparse(), "not an ordinary dense one"),
    ],
)
def test_only_the_right_tensor_passes(reply, said):
    result = judged(reply)
    assert result.passed == (said == "")
    assert said in result.message


@pytest.mark.parametrize("entry", [0, 7, 79])
def test_one_entry_past_the_budget_fails(entry):
    def nudged(o):
        o.view(-1)[entry] += 1e-4
        return o

    assert "1 of 160 entries are wrong" in judged(nudged).message


def test_a_row_that_sees_no_key_must_be_exactly_zero():
    args = BLOCKS | {"query_offset": -3}

    case = Case("x", "y", {"Hq": 2, "Hkv": 2, "T": 5, "S": 9}, args)
    (inputs,) = attention_calls(case, 3)
    seen = right(inputs["q"][:, :, 3:], inputs["k"], inputs["v"], 0)
    exact = oracle.attention(inputs)
    assert torch.equal(exact[:, :, :3], torch.zeros(1, 2, 3, 16).double())
    torch.testing.assert_close(exact[:, :, 3:], seen.double(), atol=1e-6, rtol=0)
    assert attention_limit(inputs, exact)[:, :, :3].max() == 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("params", [{}, {"v_offset": 100.0}, {"gain": 150.0}, {"S": 90}])
def test_a_tiled_computation_keeps_the_budget_and_a_tenth_off_does_not(dtype, params):
    case = Case("x", "y", {"Hq": 2, "Hkv": 2, "T": 9, "S": 20, "dtype": dtype, **params}, BLOCKS)
    (inputs,) = attention_calls(case, 11)
    want = oracle.attention(inputs)
    limit = attention_limit(inputs, want)
    good = right(inputs["q"].float(), inputs["k"].float(), inputs["v"].float())
    assert not wrong_entries(Part("o", good.to(inputs["q"].dtype), want, limit)).any()
    poor = good.bfloat16() if dtype == "float32" else 1.1 * good
    assert wrong_entries(Part("o", poor.to(inputs["q"].dtype), want, limit)).any()


def test_a_small_row_that_is_wrong_does_not_hide_behind_a_large_one():
    want = torch.tensor([[1e4, -2e4], [1.0, 0.5]], dtype=torch.float64)
    size = want.abs().amax(-1, keepdim=True)
    limit = budget(torch.full_like(want, 1e-4), size, torch.float32)
    off = torch.tensor([[0.0, 0.0], [0.0, 0.1]])
    assert wrong_entries(Part("o", want.float() + off, want, limit)).tolist() == [
        [False, False],
        [False, True],
    ]


def test_a_row_of_nothing_is_allowed_no_error():
    want = torch.zeros(2, 3, dtype=torch.float64)
    limit = budget(torch.zeros(2, 3), torch.zeros(2, 1), torch.float32)
    got = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1e-30, torch.nan]])
    assert wrong_entries(Part("o", got, want, limit)).sum() == 2
