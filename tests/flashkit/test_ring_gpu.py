"""Ring attention on GPUs: several ranks on one over gloo, and one rank a GPU over NCCL."""

import pytest
import ring_cases
import torch
from test_ring import REFUSED, assert_exact

pytestmark = pytest.mark.gpu
RINGS = {"gloo-2": (2, "gloo"), "gloo-4": (4, "gloo"), "nccl": (0, "nccl")}


@pytest.fixture(scope="module", params=RINGS.values(), ids=RINGS)
def ranks(request, tmp_path_factory):
    """The results of every rank; NCCL takes the GPUs that are there."""
    world, transport = request.param
    folder = tmp_path_factory.mktemp("ring")
    return ring_cases.run(world or torch.cuda.device_count(), "cuda", folder, transport)


@pytest.mark.parametrize("name", ring_cases.GPU)
def test_the_ring_computes_what_one_process_does(ranks, name):
    for results in ranks:
        assert_exact(results[name], name)


def test_no_buffer_is_stale(ranks):
    for results in ranks:
        assert_exact(results["poisoned"], "float32")


@pytest.mark.parametrize("name", REFUSED)
def test_all_ranks_raise_the_same_error(ranks, name):
    assert len({results["refused"][name] for results in ranks}) == 1
