"""The likelihood of a response surface: its gradient, a slow reference of it, and the search for where it is largest."""

import math

import numpy as np
import pytest
from planted import exact, failing_rates
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.stats import exponnorm, t

from rlscale.frontier import fit_surface
from rlscale.frontier import response as names
from rlscale.frontier.response import Response
from rlscale.frontier.runs import check_runs


def random_response(missed: bool):
    """A dozen scattered runs, of which some missed the goal, and parameters beside the best ones."""
    rng = np.random.default_rng(8)
    sizes, rates, steps = (v[::3] for v in exact())
    steps = steps * np.exp(0.5 * rng.standard_normal(len(steps)))
    spent = sizes * steps
    steps = np.where(missed & (np.arange(len(steps)) % 3 == 0), math.inf, steps)
    points = check_runs(sizes, steps, spent, [i % 3 for i in range(len(sizes))])
    runs = Response(points, rates, offset_sd=0.2)
    theta = np.concatenate([[4.2, 6.4, -4.4, 0.45, -1.6, 0.2, -1.2, -2.0, 0.7, 0.8, 0.1], [0.1, -0.2, 0.05]])
    return points, rates, runs, theta


@pytest.mark.parametrize("missed", [False, True])
def test_the_gradient_is_that_of_the_loss(missed):
    *_, runs, theta = random_response(missed)
    _, gradient = runs.loss(theta)
    for index, slope in enumerate(gradient):
        step = np.zeros(len(theta))
        step[index] = 1e-6
        assert (runs.loss(theta + step)[0] - runs.loss(theta - step)[0]) / 2e-6 == pytest.approx(slope, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("missed", [False, True])
def test_the_loss_is_that_of_a_slow_reference(missed):
    """Each run's density written out with scipy's distributions; differences of two losses, so that priors are held too."""
    points, rates, runs, theta = random_response(missed)
    priors = {3: (0.5, 0.3), 4: (math.log(0.15), 0.8), 5: (0.0, 0.5), 6: (math.log(0.25), 0.7), 7: (-2.7, 1.0), 8: (0.5, 1.5)}
    priors[9] = (1.4, 0.5)
    x = np.log([p.batch_size for p in points])

    def slow(theta):
        a, c, p, q, log_k, asymmetry, log_sigma, stuck, ends, brink, log_alpha, *offsets = theta
        total = 0.0
        for i, point in enumerate(points):
            u = math.log(rates[i]) - p - q * (x[i] - x.mean())
            k = math.exp(log_k + (asymmetry if u > 0 else -asymmetry))
            place = a + math.log(1 + math.exp(math.exp(log_alpha) * (c - x[i]))) + k * u**2 + offsets[point.group]
            far = ((x[i] - (x.max() + x.min()) / 2) / ((x.max() - x.min()) / 2)) ** 4
            usual = 1 / (1 + math.exp(-stuck - ends * far))
            share = usual + (1 - usual) / (1 + math.exp(-(u - brink) / 0.2))
            normal, late = t(4, place, math.exp(log_sigma) + 0.02), exponnorm(1.5 / 0.3, place, 0.3)
            if point.censored:
                limit = math.log(point.observations / point.batch_size)
                density = (1 - share) * normal.sf(limit) + share * (0.3 + 0.7 * late.sf(limit))
            else:
                y = math.log(point.optimizer_steps)
                density = (1 - share) * normal.pdf(y) + share * 0.7 * late.pdf(y)
            total -= math.log(density)
        total += sum(((theta[i] - mean) / deviation) ** 2 / 2 for i, (mean, deviation) in priors.items())
        centre = float((np.log(rates) - 0.5 * (x - x.mean())).mean())
        return total + ((p - centre) / 1.5) ** 2 / 2 + sum((b / 0.2) ** 2 / 2 for b in offsets)

    moved = theta + 0.1 * np.random.default_rng(1).standard_normal(len(theta))
    assert runs.loss(theta)[0] - runs.loss(moved)[0] == pytest.approx(slow(theta) - slow(moved), rel=1e-6)


def test_the_density_of_a_stuck_run_integrates_to_the_share_that_arrives():
    density = quad(lambda e: float(names._stuck(np.array([e]), np.array([False]))[0][0]), -3, 30)[0]
    assert density == pytest.approx(0.7, abs=1e-4)


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_no_other_fit_is_likelier(seed):
    """Fits along the parameters themselves, from thirty random places, some of which end in other wells."""
    sizes, rates, steps, observations = failing_rates(seed)
    fitted = fit_surface(sizes, rates, steps, observations).fitted
    rng, runs = np.random.default_rng(1), fitted.runs

    def loss(part):
        value, gradient = runs.loss(np.append(part, 0.0))  # the last is the exponent's logarithm
        return value, gradient[:10]

    width = np.array([0.5, 2.0, 1.0, 0.2, 0.7, 0.3, 0.5, 1.0, 1.0, 0.5])
    losses = []
    for _ in range(30):
        theta = runs.starts()[rng.integers(12)] + np.append(width * rng.standard_normal(10), 0.0)
        losses.append(minimize(loss, theta[:10], jac=True).fun)
    assert fitted.loss <= min(losses) + 1e-3
    assert max(losses) > fitted.loss + 1


@pytest.mark.parametrize("missed", [False, True])
def test_along_its_directions_the_loss_is_about_a_unit_sphere(missed):
    rng = np.random.default_rng(2)
    sizes, rates, steps = (np.tile(v, 8) for v in exact())
    steps = steps * np.exp(0.3 * rng.standard_t(4, len(steps)))
    spent = sizes * steps
    steps = np.where(missed & (rng.random(len(steps)) < 0.3), math.inf, steps)
    runs = Response(check_runs(sizes, steps, spent, [i % 20 for i in range(len(sizes))]), rates, offset_sd=0.2)
    best = runs.minimize(runs.best(quickly=True).theta)
    allowed = np.delete(np.eye(len(best.theta)), [names.C, names.ALPHA], axis=1)
    directions = runs.directions(best.theta, allowed)
    assert not directions[[names.C, names.ALPHA]].any()
    curvature = np.linalg.eigvalsh(directions.T @ runs.curvature(best.theta) @ directions)
    assert curvature.min() > 0.25
    assert curvature.max() < 4
    plain = np.linalg.eigvalsh(allowed.T @ runs.curvature(best.theta) @ allowed)
    assert plain.max() / plain.min() > 20 * curvature.max() / curvature.min()
