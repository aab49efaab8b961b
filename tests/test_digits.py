"""The example of docs/noise.md, run as it stands on the page, against the gradient of every single digit at every step."""

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

pytest.importorskip("sklearn", reason="scikit-learn is in the dev extra")

PAGE = Path(__file__).parent.parent / "docs" / "noise.md"
WINDOW = 20
LINE = re.compile(
    r"step (\d+), loss [\d.]+: noise scale (?:([\d.,]+) \[([\d.,]+), ([\d.,∞]+)\]|not resolved, above ([\d.,]+)) samples"
)


def number(text):
    return float("inf") if text == "∞" else float(text.replace(",", ""))


@pytest.fixture(scope="module")
def example():
    """What the page's block prints, its names, and the parameters before every optimizer step."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 32
    trail, names, printed = [], {}, io.StringIO()

    def keep(optimizer, *_):
        trail.append([p.detach().double().clone() for group in optimizer.param_groups for p in group["params"]])

    hook = register_optimizer_step_pre_hook(keep)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "docs/noise.md", "exec"), names)
    finally:
        hook.remove()
    return printed.getvalue().strip().splitlines(), names, trail


def true_parts(images, labels, parameters):
    """tr Σ and |G|² of one digit drawn at random, by hand: a layer's gradient for one sample is the product of two vectors."""
    w1, b1, w2, b2 = parameters
    x = images.double()
    hidden = torch.tanh(x @ w1.T + b1)
    d2 = torch.softmax(hidden @ w2.T + b2, dim=1) - torch.nn.functional.one_hot(labels, 10)
    d1 = (d2 @ w2) * (1 - hidden.square())
    n = len(x)
    mean = [d1.T @ x / n, d1.mean(0), d2.T @ hidden / n, d2.mean(0)]
    square = d1.square().sum(1) * (x.square().sum(1) + 1) + d2.square().sum(1) * (hidden.square().sum(1) + 1)
    grad_sq = sum(float(part.square().sum()) for part in mean)
    return float(square.mean()) - grad_sq, grad_sq


def test_it_prints_the_true_noise_scale(example):
    lines, names, trail = example
    printed = [LINE.fullmatch(line) for line in lines]
    assert all(printed)
    assert [int(found[1]) for found in printed] == list(range(WINDOW, len(trail) + 1, WINDOW))
    truths, covered = [], []
    for w, found in enumerate(printed):
        parts = [true_parts(names["images"], names["labels"], point) for point in trail[w * WINDOW : (w + 1) * WINDOW]]
        trace, grad = np.sum(parts, axis=0)
        truths.append(trace / grad)
        low, high = (number(found[5]), float("inf")) if found[5] else (number(found[3]), number(found[4]))
        covered.append(low < truths[-1] < high)
        if w < 5:  # while the signal is clear
            assert number(found[2]) == pytest.approx(truths[-1], rel=0.3)
    assert sum(covered) >= len(covered) - 1  # 95% intervals, ten of them
    assert truths[0] < 100
    assert truths[-1] > 256


def test_the_page_shows_what_it_prints(example):
    shown = [line.strip() for line in PAGE.read_text().splitlines() if LINE.fullmatch(line.strip())]
    assert len(shown) > 3
    # Other processors round otherwise, and later steps go their own way: the first line is the same everywhere.
    assert shown[0] == example[0][0]
