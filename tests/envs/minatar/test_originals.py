"""All games against the original package under random play."""

import minatar
import numpy as np
import pytest
from minatar_match import LETTERS, Match

from rlscale.envs.minatar.env import GAMES


def test_the_tables_are_the_originals():
    assert tuple(GAMES) == ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
    for game in GAMES:
        original = minatar.Environment(game)
        assert (GAMES[game].channels, GAMES[game].actions) == (original.state_shape()[2], len(original.minimal_action_set()))


@pytest.mark.parametrize("game", GAMES)
def test_random_play_is_the_originals(game):
    match, rng = Match(game, 6), np.random.default_rng(0)
    letters = [LETTERS[action] for action in match.minimal]
    for _ in range(2600 if game == "freeway" else 1500):  # Freeway's episodes last 2,501 steps
        match.step(rng.choice(letters, 6))
    assert match.events["resets"] >= 6
