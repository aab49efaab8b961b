"""The reduction of block gradients to block statistics, against slow references."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from statistics_by_hand import statistics_of

from rlscale.noise import BlockStatistics, block_products, block_statistics, noise_scale

shapes = st.tuples(st.integers(3, 12), st.integers(1, 40), st.integers(0, 2**32 - 1))


@settings(deadline=None)
@given(shapes, st.sampled_from([torch.float32, torch.float64]))
def test_block_statistics_match_the_definition(shape, dtype):
    blocks, d, seed = shape
    rng = np.random.default_rng(seed)
    g, sizes = rng.normal(size=(blocks, d)).astype("float32"), rng.integers(0, 20, blocks)
    sizes[0] = 1
    mean = torch.empty(d, dtype=dtype)
    actual = block_statistics(torch.tensor(g, dtype=dtype), sizes, mean_out=mean)
    expected = statistics_of(g.astype(float), sizes)
    np.testing.assert_allclose(actual.square, expected.square, rtol=1e-5)
    np.testing.assert_allclose(actual.dot, expected.dot, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean.numpy(), (sizes[:, None] * g).sum(0) / sizes.sum(), rtol=1e-4, atol=1e-6)


def test_long_gradients_keep_their_precision():
    """Two million float32 elements: a plain float32 sum would be off in the fourth digit, float64 over pieces is not."""
    generator = torch.Generator().manual_seed(7)
    g = torch.randn(4, 2_000_003, generator=generator) + 1.0
    expected = statistics_of(g.double().numpy(), [1, 2, 3, 4])
    actual = block_statistics(g, [1, 2, 3, 4])
    np.testing.assert_allclose(actual.square, expected.square, rtol=2e-7)
    np.testing.assert_allclose(actual.dot, expected.dot, rtol=2e-7)


def test_parameter_shaped_and_flat_gradients_agree():
    parts = [[torch.full((2, 3), float(k)), torch.full((4,), 2.0 * k)] for k in range(4)]
    flat = torch.stack([torch.cat([p.reshape(-1) for p in row]) for row in parts])
    shaped, plain = block_statistics(parts, [1] * 4), block_statistics(flat, [1] * 4)
    np.testing.assert_array_equal(shaped.square, plain.square)
    np.testing.assert_array_equal(shaped.dot, plain.dot)


@settings(deadline=None)
@given(shapes, st.sampled_from([torch.float32, torch.float64]))
def test_a_metric_weighs_the_parameters(shape, dtype):
    """Σ p g² and Σ p g ĝ, by their definition."""
    blocks, d, seed = shape
    rng = np.random.default_rng(seed)
    g, sizes, metric = rng.normal(size=(blocks, d)), rng.integers(1, 20, blocks), np.exp(3 * rng.normal(size=d))
    mean = torch.empty(d, dtype=dtype)
    actual = block_statistics(torch.tensor(g, dtype=dtype), sizes, metric=metric, mean_out=mean)
    batch = (sizes[:, None] * g).sum(0) / sizes.sum()
    scale = (metric * g * g).sum(1)
    np.testing.assert_allclose(actual.square, scale, rtol=1e-5)
    np.testing.assert_allclose(actual.dot, [sum(p * x * m for p, x, m in zip(metric, row, batch, strict=True)) for row in g],
                               rtol=1e-5, atol=1e-5 * scale.max())  # fmt: skip
    np.testing.assert_allclose(mean.numpy(), batch, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(actual.size, sizes)


def test_the_noise_scale_in_a_metric():
    """Per-observation noise Σ = diag(s²) around G: tr(PΣ) / GᵀPG with P = diag(p), 30.3 here where the plain scale is 3.3."""
    rng = np.random.default_rng(11)
    s, mean, p = np.array([1.0, 4.0, 0.5]), np.array([2.0, 0.5, 1.0]), np.array([0.1, 5.0, 1.0])
    g = mean + s * rng.normal(size=(4000, 50, 3))
    truth = (p * s * s).sum() / (p * mean * mean).sum()
    assert truth == pytest.approx(80.35 / 2.65)
    noise = noise_scale(block_statistics(torch.tensor(g.mean(1)), [50] * 4000, metric=p))
    assert noise.trace_cov == pytest.approx(80.35, rel=0.05)
    assert noise.grad_sq == pytest.approx(2.65, rel=0.05)
    assert noise.interval[0] < truth < noise.interval[1]
    plain = noise_scale(block_statistics(torch.tensor(g.mean(1)), [50] * 4000))
    assert plain.b_simple == pytest.approx(17.25 / 5.25, rel=0.05)


PARTS = [
    pytest.param([slice(0, 300_003)], id="all"),
    pytest.param([slice(0, 299_874)], id="all but the last columns"),
    pytest.param([slice(10, 1000), slice(131_072, 196_608), slice(250_000, 250_001)], id="several, one of them a whole piece"),
    pytest.param([slice(5, 299_000)], id="most"),
    pytest.param([slice(300_000, 300_003)], id="the last columns"),
]


@pytest.mark.parametrize("given_mean", [False, True])
@pytest.mark.parametrize("part", PARTS)
def test_products_of_a_part_and_in_a_metric(part, given_mean):
    """All four pairs against float64 sums; the plain ones are not changed by what else is asked for."""
    generator = torch.Generator().manual_seed(8)
    g = torch.randn(5, 300_003, generator=generator) + 0.5
    metric = torch.exp(torch.randn(300_003, generator=generator))
    sizes = np.array([1.0, 2, 3, 4, 5])
    mean = (torch.tensor(sizes / sizes.sum()) @ g.double()).float()
    how = {"mean": mean} if given_mean else {"sizes": sizes}
    found = block_products(g, metric=metric, part=part, **how)
    mask = torch.zeros(300_003, dtype=torch.float64)
    for columns in part:
        mask[columns] = 1
    assert found.shape == (4, 2, 5)
    for pair, weight in zip(found, (torch.ones_like(mask), metric.double(), mask, mask * metric.double()), strict=True):
        torch.testing.assert_close(pair[0], (weight * g.double().square()).sum(1), rtol=3e-6, atol=0)
        torch.testing.assert_close(pair[1], g.double() @ (weight * mean.double()), rtol=2e-6, atol=1e-3)
    torch.testing.assert_close(block_products(g, **how)[0], found[0], rtol=0, atol=0)
    torch.testing.assert_close(block_products(g, part=part, **how), found[[0, 2]], rtol=0, atol=0)
    torch.testing.assert_close(block_products(g, metric=metric, **how)[0], found[0], rtol=0, atol=0)


@pytest.mark.parametrize("width", [2048, 2049, 3585, 4096, 4099])
def test_a_part_may_begin_and_end_at_any_border(width):
    """Borders at and beside whole runs of 1,024 columns, where a part can be as long as what was summed of the whole."""
    generator = torch.Generator().manual_seed(9)
    g = torch.randn(3, width, generator=generator) + 0.5
    mean = torch.randn(width, generator=generator)
    near = sorted({edge + step for edge in (*range(0, width, 1024), width) for step in (-1, 0, 1, 513)})
    borders = [border for border in near if 0 <= border <= width]
    for first, last in itertools.combinations(borders, 2):
        squares, dots = block_products(g, mean=mean, part=[slice(first, last)])[1]
        here, by = g[:, first:last].double(), mean[first:last].double()
        torch.testing.assert_close(squares, here.square().sum(1), rtol=3e-6, atol=0)
        torch.testing.assert_close(dots, here @ by, rtol=2e-6, atol=1e-3)


@pytest.mark.parametrize("metric", [None, torch.tensor([1.0, 3e4, 2e5] * 1000)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_changes_no_statistics(dtype, metric):
    """Squares of such gradients are zero in float16, and such weights of Adam infinite."""
    gradients = 1e-4 * torch.randn(4, 3000, generator=torch.Generator().manual_seed(6))
    expected = block_statistics(gradients, [1, 2, 3, 4], metric=metric)
    with torch.autocast("cpu", dtype):
        found = block_statistics(gradients, [1, 2, 3, 4], metric=metric)
        assert torch.is_autocast_enabled("cpu")
    assert found == expected


def test_a_metric_of_another_length_is_refused():
    with pytest.raises(ValueError, match="metric has shape"):
        block_statistics(torch.ones(3, 4), [1, 1, 1], metric=torch.ones(3))


@pytest.mark.parametrize("mean_out", [torch.empty(5), torch.empty(4, dtype=torch.float64)])
def test_a_place_for_the_mean_that_does_not_fit_is_refused(mean_out):
    with pytest.raises(ValueError, match=r"mean_out must have 4 elements of torch\.float32"):
        block_statistics(torch.ones(3, 4), [1, 1, 1], mean_out=mean_out)


@pytest.mark.parametrize(
    ("gradients", "sizes", "word"),
    [
        (torch.ones(3, 2), [1, 2], "block_sizes"),
        (torch.ones(1, 2), [1], "two blocks"),
        (torch.ones(2, 2), [0, 0], "not all zero"),
        (torch.ones(2, 2), [-1, 2], "zero or more"),
        (torch.ones(2, 2), [1, math.nan], "block_sizes must be zero or more, finite"),
        ([{"weight": torch.ones(2)}, {"weight": torch.ones(2)}], [1, 1], "a dictionary's tensors as a list"),
        (torch.tensor([[1.0, math.nan], [1.0, 1.0]]), [1, 1], "not finite"),
        ([torch.ones(2), torch.ones(3)], [1, 1], "number of parameters"),
        (torch.ones(2), [1, 1], "two dimensions"),
        ({0: torch.ones(2), 1: torch.ones(2)}, [1, 1], "one entry for each block and no dictionary"),
        ({"weight": torch.ones(2, 3), "bias": torch.ones(2, 1)}, [1, 1], r"torch\.cat\(\[g\.flatten\(1\) for g in"),
        (torch.ones(2, 2, dtype=torch.complex64), [1, 1], "block_gradients: complex numbers"),
        ([[torch.ones(2), 1j * torch.ones(1)]] * 2, [1, 1], "block_gradients: complex numbers"),
        (torch.ones(2, 0), [1, 1], "there are no parameters"),
        ([[], []], [1, 1], "there are no parameters"),
    ],
)
def test_block_statistics_refuses(gradients, sizes, word):
    with pytest.raises(ValueError, match=word):
        block_statistics(gradients, sizes)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (([4, 4], [1.0, math.nan], [1.0, 1.0]), "square: not finite"),
        (([4, math.nan], [1.0, 1.0], [1.0, 1.0]), "size: not finite"),
        (([4, 4], [1.0, 1.0], [1.0, 1.0], [3, 3]), "block: a number occurs twice"),
        (([4, 4], [1.0, 1.0], [1.0, 1.0], [0.5, 1.5]), "block: the blocks' numbers must be whole"),
        (([4, 4], [1.0, 1.0], [1.0, 1.0], ["a", "b"]), "block: the blocks' numbers must be whole"),
        (([4, 4], [1.0, 1.0], [1.0, 1.0], [math.inf, 1.0]), "block: the blocks' numbers must be whole"),
        (([4, 4], [1.0, 1.0], [1.0, 1.0], [2.0**63, 1.0]), "of 64 bits at most"),
        (([4, 4], [1.0, 1.0], [1.0, 1.0], np.array([2**63, 1], np.uint64)), "of 64 bits at most"),
    ],
)
def test_statistics_that_would_be_wrong_in_silence_are_refused(wrong, word):
    with pytest.raises(ValueError, match=word):
        BlockStatistics(*wrong)


@pytest.mark.parametrize("metric", [[1.0, -1.0], [1.0, 0.0], [1.0, math.inf], [1.0, math.nan]])
def test_a_metric_that_is_none_is_refused(metric):
    with pytest.raises(ValueError, match="metric must be positive and finite"):
        block_statistics(torch.ones(2, 2), [1, 2], metric=metric)


@pytest.mark.parametrize("buffer", [np.zeros(2), torch.zeros(2, dtype=torch.float64)])
def test_a_buffer_that_is_filled_again_leaves_earlier_statistics_as_they_were(buffer):
    window = []
    for size in (1.0, 63.0):
        buffer[:] = size
        window.append(block_statistics(torch.ones(2, 2), buffer))
    assert [update.size.tolist() for update in window] == [[1.0, 1.0], [63.0, 63.0]]


def test_block_numbers_may_be_any_of_64_bits():
    numbers = [-(2**63), 2**63 - 1]
    assert BlockStatistics([4, 4], [1.0, 1.0], [1.0, 1.0], numbers).block.tolist() == numbers
    assert BlockStatistics([4, 4], [1.0, 1.0], [1.0, 1.0], np.array([2**63 - 1, 0], np.uint64)).block[0] == 2**63 - 1


class Table:
    """As pandas has one: its iteration names the columns."""

    def __init__(self, numbers):
        self._numbers = numbers

    def __iter__(self):
        return iter(["left", "right"])

    def __array__(self, dtype=None, copy=None):
        return self._numbers


def test_gradients_of_any_container_are_read_by_their_numbers():
    """A sparse one as of `nn.Embedding(sparse=True)`, a table of two columns and two blocks, what a dictionary's values are."""
    rows = torch.tensor([[1.0, 2.0], [0.0, 3.0]])
    expected = block_statistics(rows, [1, 3])
    named = [dict(enumerate(row)) for row in rows]
    for gradients in (
        rows.to_sparse(),
        [row.to_sparse() for row in rows],
        [[row[:1], row[1:].to_sparse()] for row in rows],
        Table(rows.numpy()),
        [Table(row.numpy()) for row in rows],
        [g.values() for g in named],
        ((part for part in row) for row in rows),
    ):
        assert block_statistics(gradients, [1, 3]) == expected


def test_gradients_of_half_precision_are_reduced_in_float32():
    with pytest.raises(ValueError, match=r"torch\.float32, in which the gradients are reduced"):
        block_statistics(torch.ones(3, 4).bfloat16(), [1, 1, 1], mean_out=torch.empty(4, dtype=torch.bfloat16))


def test_statistics_are_compared_by_their_numbers():
    one, same = (block_statistics(torch.tensor([[1.0, 2.0], [3.0, 1.0]]), [4, 4]) for _ in range(2))
    assert one == same
    assert one in [same]
    assert one != BlockStatistics(one.size, one.square, one.dot + 1)
    assert one != BlockStatistics(one.size, one.square, one.dot, [0, 2])
    assert one != 1


def test_the_gradient_of_an_empty_block_is_not_read():
    """The mean over no observation is 0/0. What the caller handed over stays as it was."""
    gradients = torch.tensor([[1.0, 2.0], [math.nan, math.nan], [3.0, 1.0]])
    found = block_statistics(gradients, [4, 0, 4])
    expected = block_statistics(gradients[[0, 2]], [4, 4])
    assert found.square[[0, 2]].tolist() == expected.square.tolist()
    assert found.dot[[0, 2]].tolist() == expected.dot.tolist()
    assert gradients[1].isnan().all()


def test_a_parameter_that_a_loss_does_not_depend_on_is_named():
    """As `torch.autograd.grad(loss, parameters, allow_unused=True)` gives them, of an actor and a critic apart."""
    with pytest.raises(ValueError, match=r"block_gradients: a parameter has no gradient .* materialize_grads=True"):
        block_statistics([(torch.ones(3), None), (torch.ones(3), None)], [4, 4])
