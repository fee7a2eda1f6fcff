"""Ring attention in 1 to 4 processes on gloo, against float64 in one."""

import oracle
import pytest
import ring_cases
import torch

from flashkit import ring

WORLDS = (1, 2, 3, 4)


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world} ranks")
def ranks(request, tmp_path_factory):
    """The results of every rank: one spawn for all cases."""
    return ring_cases.run(request.param, "cpu", tmp_path_factory.mktemp("ring"))


def expected(name: str, lse_counts: bool = True) -> dict[str, torch.Tensor]:
    """o, lse and the gradients of one process in float64, by autograd through a plain softmax."""
    *_, options = ring_cases.ALL[name]
    *qkv, do, dlse = (x.double() for x in ring_cases.inputs(name, "cpu"))
    q, k, v = (x.requires_grad_() for x in qkv)
    mask = {key: options[key] for key in ("causal", "window") if key in options}
    scale = options.get("scale", q.shape[3] ** -0.5)
    o, lse = oracle.exact(q * (scale * q.shape[3] ** 0.5), k, v, **mask)
    torch.autograd.backward((o, lse), (do, dlse * lse_counts))
    return {"o": o, "lse": lse, "dq": q.grad, "dk": k.grad, "dv": v.grad}


# What a dtype may err, relative to the largest entry: P, o and each part are rounded to it.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


def assert_exact(got: dict, name: str) -> None:
    dtype = ring_cases.ALL[name][3]
    for key, want in expected(name).items():
        size = max(1.0, want.abs().max().item()) if want.numel() else 1.0
        tolerance = TOLERANCE[torch.float32 if key == "lse" and dtype != torch.float64 else dtype]
        oracle.assert_same(got[key], want.detach(), tolerance * size)
        wanted = ring_cases.lse_dtype(dtype) if key == "lse" else dtype
        assert got[key].dtype == wanted, f"{key} is {got[key].dtype}"


@pytest.mark.parametrize("name", ring_cases.EXACT)
def test_the_ring_computes_what_one_process_does(ranks, name):
    for results in ranks:
        assert_exact(results[name], name)


def test_strided_and_expanded_shards(ranks):
    q, k, v, *_ = ring_cases.inputs("grouped heads", "cpu")
    want, _ = oracle.attention(q, k, v[:, :1].expand(-1, 2, -1, -1), scale=0.3)
    for results in ranks:
        oracle.assert_same(results["strided"]["o"], want, 1e-12)


def test_what_is_hidden_never_matters(ranks):
    want = expected("causal", lse_counts=False)
    for results in ranks:
        for key, got in results["hidden"].items():
            oracle.assert_same(got, want[key].detach()[:, :, :17], 1e-12)


def test_autocast(ranks):
    want = expected("float32", lse_counts=False)
    for results in ranks:
        got = results["autocast"]
        assert (got["o"].dtype, got["dq"].dtype) == (torch.bfloat16, torch.float32)
        for key, x in got.items():
            oracle.assert_same(x, want[key].detach(), 1.6e-2 * want[key].abs().max().item())


def test_the_gradient_of_the_lse_alone(ranks):
    q, k, v, *_ = ring_cases.inputs("causal", "cpu")
    oracle.exact(q.requires_grad_(), k, v)[1].sum().backward()
    for results in ranks:
        oracle.assert_same(results["only_the_lse"]["dq"], q.grad, 1e-12)


def test_no_buffer_is_stale(ranks):
    """New buffers hold NaN, the ranks are of unequal speed and other data went before."""
    for results in ranks:
        assert_exact(results["poisoned"], "float32")


def test_the_kernels_as_parts(ranks):
    if len(ranks) != 2:
        pytest.skip("with two ranks: they are slow in the interpreter")
    for results in ranks:
        assert_exact(results["kernels"], "small")


def test_send_and_receive_are_posted_together_before_computing(ranks):
    """pytorch/pytorch#141429, lucidrains/ring-attention-pytorch#9."""
    for results in ranks:
        for log in results["events"].values():
            posts = [event for event in log if event[0] == "post"]
            assert all(sent == received > 0 for _, sent, received, _ in posts)
        log = [event[0] for event in results["events"]["forward"]]
        steps = len(ranks) - 1
        assert log.count("post") == log.count("wait") == steps
        for _ in range(steps):
            wait = log.index("wait")
            assert log[0] == "post"
            assert set(log[1:wait]) == {"compute"}
            log = log[wait + 1 :]
        assert set(log) == {"compute"}


def test_what_travels_is_what_the_docs_say(ranks):
    """docs/ring.md: K and V n - 1 times each way; dK and dV, in float32, n times."""
    (_, kv_heads), t, d, _, _ = ring_cases.EXACT["float16"]
    world, one = len(ranks), 2 * kv_heads * (t // len(ranks)) * d  # numbers of K, batch 2
    for results in ranks:
        sent = {
            way: sum(event[3] for event in log if event[0] == "post")
            for way, log in results["events"].items()
        }
        there = (world - 1) * 2 * one * 2
        home = world * 2 * one * 4 if world > 1 else 0
        assert sent == {"forward": there, "backward": there + home}


# What is said, and the numbers of ranks with which there is nothing wrong.
REFUSED = {
    "66 tokens": ("zigzag on {n} ranks needs T a multiple of {n2}, got 66", (1, 3)),
    "odd shards": ("zigzag on {n} ranks needs T a multiple of {n2}, got {n33}", (1,)),
    "unequal shards": ("the length of the shards must be the same on all 4 ranks", (1, 2, 3)),
    "two placements": ("placement must be the same on all {n} ranks, got contiguous", (1,)),
    "two masks": ("causal must be the same on all {n} ranks, got True, False", (1,)),
    "a gradient for one": ("whether a gradient is needed must be the same on all {n}", (1,)),
    "a bad v": ("rank {last}: v must have shape", ()),
    "a window of 0": ("rank {last}: window must be an integer >= 1, got 0", ()),
    "unknown placement": ("placement must be one of zigzag, contiguous, got 'diagonal'", ()),
    "no finite scale": ("rank 0: scale must be a finite number, got nan", ()),
    "k too long": ("rank 0: k must be as long as q", ()),
    "no tensor": ("rank {last}: q must be a torch.Tensor, got NoneType", ()),
    "integers": ("rank 0: q must be a floating point tensor, got torch.int64", ()),
    "float8": ("rank 0: q must be float64, float32, float16 or bfloat16, got torch.float8", ()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_all_ranks_raise_the_same_error(ranks, name):
    """jzhang38/EasyContext#10, zhuzilin/ring-flash-attention#39."""
    n = len(ranks)
    (said,) = {results["refused"][name] for results in ranks}
    sentence, fits = REFUSED[name]
    wanted = sentence.format(n=n, n2=2 * n, n33=33 * n, last=n - 1)
    assert said.startswith("no error" if n in fits else wanted)


def test_a_rank_that_is_silent_ends_the_wait_of_the_others(ranks):
    said = [results["silent_rank"]["error"] for results in ranks[:-1]]
    assert "no error" not in said
    assert any("Timed out" in error for error in said) or not said


def test_a_rank_that_dies_ends_the_others(ranks):
    for results in ranks[:-1]:
        assert results["dead_rank"]["error"] != "no error"


def test_a_ring_of_some_ranks(ranks):
    if len(ranks) < 4:
        pytest.skip("ranks 1 and 3 of four")
    first, second, third, fourth = (results["subgroup"] for results in ranks)
    assert first["error"] == third["error"] == "this process is not in the given group"
    for got in (second, fourth):
        assert_exact(got, "causal")


def test_without_a_process_group():
    q, k, v = oracle.draw(0, 1, (1, 1), 4, 4, 16)
    for call in (lambda: ring.ring_attention(q, k, v), lambda: ring.shard(q)):
        with pytest.raises(ValueError, match="ring attention needs a process group"):
            call()
