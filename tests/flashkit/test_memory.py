"""peak_bytes counts what is alive at once, on known allocations and on the chapter's claim."""

import pytest
import torch

from flashkit import causal_attention, cost, flash_attention, online_attention, runtime
from flashkit.backward import attention_backward
from flashkit.memory import peak_bytes, training_bytes

KIB = 256  # float32 elements
on_cpu = pytest.mark.skipif(
    runtime.device() == "cuda", reason="the GPU's allocator rounds: exact counts are for the CPU"
)


@on_cpu
def test_one_result_counts():
    assert peak_bytes(torch.zeros, KIB) == 1024
    assert peak_bytes(lambda: None) == 0


@on_cpu
def test_arguments_views_and_writes_in_place_are_free():
    x = torch.zeros(4, KIB)
    assert peak_bytes(lambda x: x.view(-1)[3:].reshape(-1), x) == 0
    assert peak_bytes(lambda x: x.add_(1).mul_(2), x) == 0
    assert peak_bytes(lambda *, x: x.transpose(0, 1), x=x) == 0


@on_cpu
def test_alive_together_adds_up_and_one_after_another_does_not():
    def together():
        return torch.zeros(KIB), torch.zeros(2 * KIB)

    def in_turn():
        for _ in range(5):
            x = torch.zeros(KIB)
            del x

    assert peak_bytes(together) == 3 * 1024
    assert peak_bytes(in_turn) == 1024


@on_cpu
def test_a_view_keeps_its_storage_alive():
    def hold():
        part = torch.zeros(4 * KIB)[:1]
        return part, torch.zeros(KIB)

    assert peak_bytes(hold) == 5 * 1024


@on_cpu
def test_temporaries_of_an_expression():
    x = torch.zeros(KIB)
    assert peak_bytes(lambda: (x + 1) + (x + 2)) == 3 * 1024
    assert peak_bytes(lambda: ((x + 1) + 2) + 3) == 2 * 1024


@on_cpu
def test_an_error_leaves_nothing_counting():
    def fail():
        torch.zeros(KIB)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        peak_bytes(fail)
    assert peak_bytes(torch.zeros, KIB) == 1024


def peaks(attention, lengths, **kwargs) -> list[int]:
    found = []
    for t in lengths:
        q, k, v = (torch.zeros(1, 1, t, 64, device=runtime.device()) for _ in range(3))
        found.append(peak_bytes(attention, q, k, v, **kwargs))
    return found


def test_exact_grows_quadratically_and_online_linearly():
    lengths = (1024, 2048, 4096)
    exact = peaks(causal_attention, lengths)
    online = peaks(online_attention, lengths, tile=64)
    for small, large in zip(exact, exact[1:], strict=False):
        assert 3.5 <= large / small <= 4.1
    for small, large in zip(online, online[1:], strict=False):
        assert 1.5 <= large / small <= 2.1
    assert exact[-1] >= 2 * 4096**2 * 4, "S and P, float32, at once"
    assert online[-1] < 4096**2 * 4 / 4, "far less than one score matrix"


def draw(t, d=32):
    return [torch.randn(1, 1, t, d, device=runtime.device()) for _ in range(4)]


def test_a_step_through_stored_p_grows_quadratically_and_one_through_lse_linearly():
    """What a training step holds, the gradients included."""
    stored = [training_bytes(causal_attention, *draw(t)) for t in (512, 1024)]
    assert stored[1] >= 3.5 * stored[0]
    assert stored[1] >= 3 * 1024**2 * 4, "P, dP and dS, float32, at once"
    recomputed = [training_bytes(flash_attention, *draw(t)) for t in (48, 96, 192)]
    for small, large in zip(recomputed, recomputed[1:], strict=False):
        assert 1.5 <= large / small <= 2.1
    kept = cost.saved_bytes(192, 192, 32, itemsize=4)
    assert recomputed[-1] <= 4 * kept, "what is kept, the gradients, and little besides"


def test_the_backward_in_pytorch_is_linear_too():
    peaks = []
    for t in (512, 1024, 2048):
        q, k, v, do = draw(t)
        o, lse = online_attention(q, k, v, tile=64, return_lse=True)
        peaks.append(peak_bytes(attention_backward, q, k, v, o, lse, do, tile=64))
    for small, large in zip(peaks, peaks[1:], strict=False):
        assert 1.5 <= large / small <= 2.1
    assert peaks[-1] < 2048**2 * 4 / 2, "far less than one score matrix"


@pytest.mark.gpu
def test_a_training_step_on_a_gpu_is_linear():
    """Among it float32 sums of dq and the weights' sums: whatever the backward allocates."""
    peaks = []
    for t in (4096, 8192, 16384):
        peaks.append(training_bytes(flash_attention, *(x.bfloat16() for x in draw(t, 128))))
    for small, large in zip(peaks, peaks[1:], strict=False):
        assert 1.8 <= large / small <= 2.1


@pytest.mark.gpu
def test_on_a_gpu_it_is_the_allocators_peak():
    size = 64 * 2**20
    peak = peak_bytes(torch.zeros, size // 4, device="cuda")
    assert size <= peak <= size + 2**21
    assert peak_bytes(lambda: None) == 0
