"""Advantages against a slow sum straight from the definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlscale.agents.learning.advantages import generalized_advantages


def slow_advantage(t, i, reward, value, bootstrap, terminated, truncated, gamma, lam):
    """A_t = Σ_l (γλ)^l δ_{t+l}, up to and including the first step that ends, or the end of the fragment."""
    total, weight = 0.0, 1.0
    for s in range(t, len(reward)):
        following = value[s + 1, i] if s + 1 < len(reward) else bootstrap[i]
        future = 0.0 if terminated[s, i] else gamma * following
        total += weight * (reward[s, i] + future - value[s, i])
        if terminated[s, i] or truncated[s, i]:
            break
        weight *= gamma * lam
    return total


@given(st.integers(1, 12), st.integers(1, 4), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_matches_the_definition(steps, envs, gamma, lam, seed):
    rng = np.random.default_rng(seed)
    reward, value = rng.normal(size=(2, steps, envs)).astype(np.float32)
    bootstrap = rng.normal(size=envs).astype(np.float32)
    terminated, truncated = rng.random((2, steps, envs)) < 0.2
    advantage, target = generalized_advantages(
        reward=reward,
        value=value,
        bootstrap_value=bootstrap,
        terminated=terminated,
        truncated=truncated,
        discount=gamma,
        gae_lambda=lam,
    )
    expected = np.array(
        [
            [slow_advantage(t, i, reward, value, bootstrap, terminated, truncated, gamma, lam) for i in range(envs)]
            for t in range(steps)
        ]
    )
    np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(target, expected + value, rtol=1e-4, atol=1e-5)


def one(reward, value, bootstrap, terminated, truncated):
    column = {"reward": reward, "value": value, "terminated": terminated, "truncated": truncated}
    arrays = {k: np.array(v, dtype=bool if k.endswith("ed") else np.float32)[:, None] for k, v in column.items()}
    return generalized_advantages(
        **arrays, bootstrap_value=np.array([bootstrap], dtype=np.float32), discount=0.9, gae_lambda=1.0
    )[0][:, 0]


def test_a_terminated_step_has_no_future_and_a_truncated_one_has():
    # Step 1 ends; step 2 is the reset, whose observation is the true last one with value 5.
    ended = [False, True, False]
    terminated = one([1, 1, 0], [0, 0, 5], 7.0, ended, [False] * 3)
    truncated = one([1, 1, 0], [0, 0, 5], 7.0, [False] * 3, ended)
    assert terminated[:2] == pytest.approx([1 + 0.9, 1])
    assert truncated[:2] == pytest.approx([1 + 0.9 * (1 + 0.9 * 5), 1 + 0.9 * 5])


def test_the_fragment_end_is_bootstrapped():
    assert one([1.0], [0.0], 10.0, [False], [False]) == pytest.approx([10.0])


def test_value_of_an_endless_reward_is_its_geometric_sum():
    """With V = 1/(1-γ) and reward 1 for ever every advantage is zero."""
    advantage = one([1.0] * 6, [10.0] * 6, 10.0, [False] * 6, [False] * 6)
    np.testing.assert_allclose(advantage, 0, atol=1e-5)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"\(T, N\)"):
        one([1.0, 2.0], [0.0], 0.0, [False], [False])
