"""The twins say what Python says: the same state after every tile, the same refusals."""

import math
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashkit import native
from flashkit.native import build, cuda
from flashkit.online import State
from flashkit.trace import trace as float64_trace

Q, K, V = [1.0], [[0.0], [1.0], [2.0], [-1.0]], [[2.0], [4.0], [1.0], [3.0]]
NAMES = {"cpp": "C++", "rust": "Rust", "cuda": "CUDA"}


def needs(language):
    """Skip by name where the compiler is missing."""
    missing = language in NAMES and language not in native.languages()
    return pytest.mark.skipif(missing, reason=f"needs a {NAMES.get(language)} compiler")


each_language = pytest.mark.parametrize(
    "language", [pytest.param(name, marks=needs(name)) for name in ("cpp", "rust", "python")]
)
settings.register_profile("twins", derandomize=True, max_examples=50, deadline=None)
twins = settings.get_profile("twins")


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """What these tests build lies in a folder of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        build.load.cache_clear()
        yield
    build.load.cache_clear()


def run(q, k, v, tile=16, language="cpp"):
    return native.online_attention(*map(torch.as_tensor, (q, k, v)), tile, language=language)


def draw(seed, s, d, dv, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(d, generator=generator) * spread
    return q, torch.randn(s, d, generator=generator), torch.rand(s, dv, generator=generator)


def exact(q, k, v):
    """softmax(q k^T / sqrt(D)) v in float64."""
    weights = torch.softmax(k.double() @ q.double() / math.sqrt(len(q)), 0)
    return weights @ v.double()


@each_language
def test_worked_example(language):
    o, (m, l, a) = run(Q, K, V, 2, language)
    assert o.tolist() == pytest.approx([1.8619], abs=5e-5)
    assert m.tolist() == [1.0, 2.0]
    assert l.tolist() == pytest.approx([1.3679, 1.5530], abs=5e-5)
    assert a[:, 0].tolist() == pytest.approx([4.7358, 2.8915], abs=5e-5)


@needs("cpp")
@needs("rust")
@twins
@given(st.integers(0, 99), st.integers(1, 70), st.integers(1, 40), st.integers(1, 9), st.data())
def test_cpp_and_rust_give_the_same_bits(seed, s, d, dv, data):
    inputs, tile = draw(seed, s, d, dv, spread=5.0), data.draw(st.integers(1, 80))
    (o, states), (o_rust, states_rust) = (run(*inputs, tile, name) for name in ("cpp", "rust"))
    for x, y in zip((o, *states), (o_rust, *states_rust), strict=True):
        assert torch.equal(x, y)


SCORES = st.lists(st.one_of(st.integers(-30, 30), st.just(-math.inf)), min_size=1, max_size=40)


@each_language
@twins
@given(scores=SCORES, tile=st.integers(1, 45))
def test_every_state_is_a_few_ulp_from_float64(language, scores, tile):
    """With scores that float32 holds, m is exact, and l and a are off by rounding alone."""
    scores = torch.tensor(scores, dtype=torch.float32)
    values = torch.rand(len(scores), 3, generator=torch.Generator().manual_seed(len(scores)))
    if scores.max() == -math.inf:
        with pytest.raises(ValueError, match="a query row has no visible key"):
            run(Q, scores[:, None], values, tile, language)
        return
    o, states = run(Q, scores[:, None], values, tile, language)
    records = float64_trace(scores, values, tile)
    want = ([x.m_new for x in records], [x.l_new for x in records], [x.a_new for x in records])
    assert states.m.tolist() == want[0]
    for got, exactly in zip((states.l, states.a), want[1:], strict=True):
        assert native.ulps(got, torch.tensor(exactly)) <= 8
    assert native.ulps(o, states.a[-1] / states.l[-1]) <= 1


@each_language
@pytest.mark.parametrize("sizes", [(1, 1, 1), (37, 16, 5), (300, 64, 64), (1000, 80, 3)])
def test_the_result_is_the_softmax_whatever_the_tile(language, sizes):
    q, k, v = draw(1, *sizes, spread=2.0)
    for tile in (1, 7, 64, sizes[0], 10**30):
        o, states = run(q, k, v, tile, language)
        assert len(states.m) == -(-sizes[0] // tile)
        torch.testing.assert_close(o.double(), exact(q, k, v), rtol=5e-6, atol=0)


@each_language
@pytest.mark.parametrize("scores", [[-1e4, 1e4], [1e4, 1e4 - 1], [-1e30, -2e30], [3e38, -3e38]])
def test_large_scores_neither_overflow_nor_vanish(language, scores):
    k, v = torch.tensor(scores)[:, None], torch.tensor([[1.0], [2.0]])
    o, _ = run(Q, k, v, 1, language)
    torch.testing.assert_close(o.double(), exact(torch.tensor(Q), k, v), rtol=1e-6, atol=0)


@each_language
def test_what_is_hidden_never_matters(language):
    """Scores of -inf, in whole tiles too; the state waits, and their NaN stays out."""
    hidden = [[-math.inf], [-math.inf], [1.0], [-math.inf], [2.0]]
    o, (m, l, a) = run(Q, hidden, [[math.nan], [math.inf], [5.0], [math.nan], [7.0]], 2, language)
    assert m.tolist() == [-math.inf, 1.0, 2.0]
    assert l.tolist() == pytest.approx([0.0, 1.0, 1 + math.exp(-1)])
    assert a[:, 0].tolist() == pytest.approx([0.0, 5.0, 7 + 5 * math.exp(-1)])
    assert o.isfinite().all()


@each_language
@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("what", [math.nan, math.inf])
def test_what_is_seen_and_no_number_shows(language, at, what):
    k = torch.tensor(K)
    k[at] = what
    o, states = run(Q, k, V, 2, language)
    assert o.isnan().all()
    assert states.m[-1].isnan() == math.isnan(what)


@each_language
def test_any_strides(language):
    q, k, v = draw(2, 30, 12, 10)
    wide = torch.full((30, 24), math.nan)
    wide[:, ::2] = k
    o, _ = run(q, wide[:, ::2], v.T.contiguous().T, 7, language)
    assert torch.equal(o, run(q, k, v, 7, language)[0])
    same = run(q[:1].expand(12), k[:1].expand(30, 12), v[:1].expand(30, 10), 7, language)[0]
    torch.testing.assert_close(same, v[0])


WRONG = [
    ({"tile": 0}, "tile must be an integer >= 1, got 0"),
    ({"tile": 2.0}, "tile must be an integer >= 1, got 2.0"),
    ({"language": "go"}, "language must be one of .*, got 'go'"),
    ({"q": torch.ones(1, 1)}, r"q must have shape \(D,\), got \(1, 1\)"),
    ({"q": torch.ones(0)}, r"q must have shape \(D,\), got \(0,\)"),
    ({"q": Q}, "q must be a torch.Tensor, got list"),
    ({"q": torch.ones(1).half()}, "q must be float32 on the CPU, got torch.float16"),
    ({"v": torch.ones(4, 1, device="meta")}, "v must be float32 on the CPU, got .* on meta"),
    ({"k": torch.ones(4)}, r"k must have shape \(S, D\) = \(S, 1\), got \(4,\)"),
    ({"k": torch.ones(4, 2)}, r"k must have shape \(S, D\) = \(S, 1\), got \(4, 2\)"),
    ({"v": torch.ones(3, 1)}, r"v must have shape \(S, Dv\) = \(4, Dv\), got \(3, 1\)"),
    ({"v": torch.ones(4, 0)}, r"v must have shape \(S, Dv\) = \(4, Dv\), got \(4, 0\)"),
    ({"k": torch.ones(0, 1), "v": torch.ones(0, 1)}, "a query row has no visible key"),
    ({"k": torch.full((4, 1), -math.inf)}, "a query row has no visible key"),
]


@each_language
@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_wrong_inputs(language, wrong, message):
    inputs = {"q": torch.tensor(Q), "k": torch.tensor(K), "v": torch.tensor(V)}
    with pytest.raises(ValueError, match=message):
        native.online_attention(**inputs | {"language": language} | wrong)


def test_ulps_counts_numbers_in_between():
    one, above = torch.tensor([1.0]), torch.tensor([1 + 2**-22])
    assert native.ulps(one, one) == 0
    assert native.ulps(one, above) == native.ulps(-above, -one) == 2
    assert native.ulps(torch.tensor([0.0]), torch.tensor([-0.0])) == 0
    smallest = torch.tensor([2.0**-149])
    assert native.ulps(smallest, -smallest) == 2


@pytest.mark.parametrize("language", NAMES)
def test_a_missing_compiler_is_named_and_how_to_get_it(monkeypatch, tmp_path, language):
    monkeypatch.setenv("PATH", str(tmp_path))
    for compiler in build.COMPILERS.values():
        monkeypatch.delenv(compiler.variable, raising=False)
    build.load.cache_clear()
    assert native.languages() == ()
    with pytest.raises(native.BuildError, match="compiler here .* is not on the path") as caught:
        build.load(language)
    assert f"no {NAMES[language]} compiler" in str(caught.value)
    assert "conda install -c conda-forge" in str(caught.value)


@needs("cpp")
def test_what_the_compiler_says_is_passed_on(monkeypatch, tmp_path):
    wrong = build.COMPILERS["cpp"]._replace(source="wrong.cpp")
    (tmp_path / wrong.source).write_text("int f() { return nothing; }")
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    monkeypatch.setitem(build.COMPILERS, "cpp", wrong)
    build.load.cache_clear()
    with pytest.raises(native.BuildError, match="(?s)cannot build wrong.cpp:.*nothing.*conda"):
        build.load("cpp")


@pytest.mark.parametrize("twin", [None, "no library"], ids=["unwritable", "damaged"])
def test_a_cache_of_no_use_is_named(monkeypatch, tmp_path, twin):
    compiler, cache = tmp_path / "compiler", tmp_path / "cache"
    compiler.write_text(f'#!/bin/sh\nfor target; do :; done; echo "{twin}" > $target\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    if twin is None:
        cache.touch()  # a file, where a folder should be
    build.load.cache_clear()
    with pytest.raises(native.BuildError, match="no C.. twin .*set XDG_CACHE_HOME to another"):
        build.load("cpp")


@pytest.fixture
def copier(monkeypatch, tmp_path):
    """A cache of its own, and a compiler that copies the twin slowly: how often it has run."""
    twin, log, compiler = build.load("cpp")._name, tmp_path / "log", tmp_path / "compiler"
    compiler.write_text(
        f"""#!/bin/sh
        echo run >> {log}
        for target; do :; done  # the last argument
        head -c 5000 {twin} > $target; sleep 0.1; tail -c +5001 {twin} >> $target
        """
    )
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", f"{compiler} -Wall")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build.load.cache_clear()
    yield lambda: log.read_text().count("run")
    build.load.cache_clear()


@needs("cpp")
def test_a_twin_is_built_once_for_each_way_to_build_it(copier, tmp_path):
    for _ in range(2):
        build.load("cpp")
        build.load.cache_clear()  # as in another process
    assert copier() == 1
    build.load("cpp", "-DOTHER")
    assert copier() == 2
    built = [path.name for path in (tmp_path / "cache" / "flashkit").iterdir()]
    assert len(built) == 2, built
    assert all(name.startswith("online-cpp-") for name in built)


@needs("cpp")
def test_many_may_build_at_once(copier):
    """Nobody finds a library that another has only half written."""

    def late(i):
        time.sleep(i * 0.03)  # while the first compilers are still at work
        return build.load.__wrapped__("cpp")

    with ThreadPoolExecutor(12) as pool:
        libraries = list(pool.map(late, range(12)))
    assert all(library.online_attention for library in libraries)
    assert 1 <= copier() <= 12


def test_the_sources_can_be_shown():
    assert "larger(float x, float y)" in native.source("cpp")
    assert "fn larger(x: f32, y: f32)" in native.source("rust")
    assert "__global__" in native.source("cuda")


@needs("cuda")
def test_the_cuda_kernel_builds_for_hopper_and_says_that_there_is_no_gpu():
    forward = build.load("cuda", "-DHEAD_DIM=80", "-arch=sm_90").flash_forward
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="the CUDA kernel cannot be started: .*CUDA"):
            cuda.start(forward, cuda._Problem(T=1), cuda._Trace(row=-1), 0, None)


def test_cuda_refuses_what_is_not_on_a_gpu():
    with pytest.raises(ValueError, match="q must be float32 on one GPU, got torch.float32 on cpu"):
        native.cuda_attention(torch.ones(4, 8), torch.ones(4, 8), torch.ones(4, 8))


def test_the_state_is_the_one_of_flashkit():
    assert isinstance(run(Q, K, V, 2, "python")[1], State)
