"""Supervised tasks: their examples, what is held out, and what is said where data are missing or wrong."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from rlscale.envs import find_task, list_tasks
from rlscale.envs.supervised import find_supervised
from rlscale.envs.supervised.pictures import hold_out
from rlscale.errors import UsageError


def test_digits_are_scikit_learns_each_once():
    learned, held_out = find_supervised("supervised/digits").load(None)
    images, names = load_digits(return_X_y=True)
    pictures = np.concatenate([learned.inputs, held_out.inputs])
    assert pictures.shape == (1797, 1, 8, 8)
    assert len(held_out) == 359
    mine = np.column_stack([np.round(pictures.reshape(-1, 64) * (16 / 255)), np.concatenate([learned.targets, held_out.targets])])
    theirs = np.column_stack([images, names])
    assert sorted(map(tuple, mine)) == sorted(map(tuple, theirs))


def test_what_is_held_out_is_a_fifth_and_always_the_same():
    pictures = np.arange(20_000, dtype=np.int64).reshape(-1, 1, 1, 1)
    learned, held_out = hold_out(pictures, np.zeros(20_000, dtype=np.int64))
    assert len(held_out) == 2000, "a fifth is more than enough"
    assert set(learned.inputs.flat) | set(held_out.inputs.flat) == set(range(20_000))
    np.testing.assert_array_equal(hold_out(pictures, np.zeros(20_000, dtype=np.int64))[1].inputs, held_out.inputs)
    assert len(hold_out(pictures[:50], np.zeros(50, dtype=np.int64))[1]) == 10


def test_they_are_listed_and_no_environment_is_made_of_them():
    assert "supervised/digits" in {listing.id for listing in list_tasks()}
    with pytest.raises(UsageError, match=r"has examples and no environment\. Only 'rlscale sweep supervised/digits' takes it"):
        find_task("supervised/digits")
    with pytest.raises(UsageError, match=r"no task 'supervised/digit'\. Did you mean supervised/digits"):
        find_task("supervised/digit")


def test_data_are_refused_where_a_task_brings_its_own():
    with pytest.raises(UsageError, match="--data: supervised/digits brings its own examples"):
        find_supervised("supervised/digits").load("somewhere")
