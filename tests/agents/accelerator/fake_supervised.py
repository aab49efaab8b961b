"""The supervised learner on the fake accelerator: the CPU's numbers, one wait a step and one an evaluation."""

import fake_accelerator as fake
import numpy as np
import pytest
import torch
from accelerated import sum_in_equal_pieces

from rlscale.agents.supervised import SupervisedConfig, SupervisedEvaluator, SupervisedLearner, make_network
from rlscale.envs.supervised import Examples, find_supervised

fake.register()

STEPS, BATCH = 2, 6


@pytest.fixture(autouse=True)
def by_single_operators(monkeypatch):
    """On the CPU oneDNN has a whole LSTM, whose sums may round otherwise."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


def learn(task, examples, device, blocks):
    """The steps of a new learner, the parameters that they lead to and these parameters' scores; and the counts of each."""
    (learned, held_out), there = examples, torch.device(device)
    config = SupervisedConfig(task.id, batch_size=BATCH * task.length, blocks=blocks)
    learner = SupervisedLearner(config, make_network(task, learned, 0), learned, task.length, there)
    evaluator = SupervisedEvaluator(make_network(task, learned, 1), held_out, task.length, there)
    steps, counted = [], []
    with sum_in_equal_pieces():
        for _ in range(STEPS):
            with fake.counting() as counts:
                steps.append(learner.step())
            counted.append(counts)
    weights = learner.weights()
    with fake.counting() as counts:
        scores = evaluator.evaluate(weights)
    return steps, weights, scores, [*counted, counts]


@pytest.mark.parametrize("blocks", [0, 3])
@pytest.mark.parametrize("name", ["digits", "digits-autoencoder", "digits-variational", "text"])
def test_steps_and_scores_are_the_cpus_and_each_waits_once(name, blocks, monkeypatch):
    """Whatever the number of blocks and of pieces, each of which goes through the network by itself."""
    monkeypatch.setattr("rlscale.agents.supervised.learner.CHUNK", 4)
    task = find_supervised(f"supervised/{name}")
    examples = [Examples(part.inputs[:10], part.targets[:10]) for part in task.load(None)]
    here, weights, scores, _ = learn(task, examples, "cpu", blocks)
    there, moved, scored, counted = learn(task, examples, "fake", blocks)
    for one, other in zip(here, there, strict=True):
        assert (one.loss, one.gradient_norm, one.statistics) == (other.loss, other.gradient_norm, other.statistics)
        assert (one.statistics is None) == (blocks == 0)
    np.testing.assert_array_equal(weights, moved)
    np.testing.assert_array_equal(scores, scored)
    assert [len(counts.syncs) for counts in counted] == [1] * (STEPS + 1), [counts.syncs for counts in counted]
    for counts in counted[:STEPS]:
        assert counts.uploads["torch.int64"] == 8 * BATCH, "the examples are there already, and their numbers cross"
        assert counts.uploads["torch.uint8"] == 0
