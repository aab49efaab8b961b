"""Blackjack, N at a time in NumPy: the rules of Gymnasium's `Blackjack-v1` as it is registered. Nothing else lives here.

Rules: Sutton and Barto's book, example 5.1, as in Gymnasium (MIT licence): cards are drawn with replacement, the dealer draws to
17, and a natural wins against all but another one. A test deals the same cards to both.
"""

import numpy as np
from gymnasium.spaces import Box, Discrete

from ..episodes import EpisodesVectorEnv

__all__ = ["BlackjackVectorEnv"]

_DECK = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10])
_SUMS, _CARDS = 32, 11  # Gymnasium's numbers of sums and of the dealer's cards
_LONGEST = 22  # steps, of aces alone


class BlackjackVectorEnv(EpisodesVectorEnv):
    """N tables. Action 1 takes a card, action 0 ends the hand.

    The state of a table is (4,): the sum of the player's cards with every ace as 1, whether one is an ace, the dealer's open
    card and his hidden one. The observation is (45,) float32: three one-hot vectors, of the player's sum (32), the dealer's card
    (11) and whether the player has an ace that counts 11 (2).
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, Box(0, 1, (_SUMS + _CARDS + 2,), np.float32), Discrete(2), _LONGEST)

    def draw(self, count: int) -> np.ndarray:
        """So many cards."""
        return _DECK[self.np_random.integers(0, len(_DECK), count)]

    def start(self, count: int) -> np.ndarray:
        open_card, hidden, first, second = (self.draw(count) for _ in range(4))
        return np.stack([first + second, (first == 1) | (second == 1), open_card, hidden], axis=1)

    def move(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        state = state.copy()
        hits, reward = actions == 1, np.zeros(len(state))
        card = self.draw(int(hits.sum()))
        state[hits, 0] += card
        state[hits, 1] |= card == 1
        busts = hits & (state[:, 0] > 21)
        reward[busts] = -1.0
        sticks = ~hits
        total, ace, open_card, hidden = state[sticks].T
        dealer = self._dealer(open_card, hidden)
        reward[sticks] = np.sign(_count(total, ace) - np.where(dealer > 21, 0, dealer))
        natural = (self.steps[sticks] == 0) & (total == 11) & (ace == 1)
        wins = natural & ~((open_card + hidden == 11) & ((open_card == 1) | (hidden == 1)))
        reward[np.flatnonzero(sticks)[wins]] = 1.0
        return state, reward, busts | sticks

    def _dealer(self, open_card: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        """What the dealers' hands count in the end."""
        total, ace = open_card + hidden, (open_card == 1) | (hidden == 1)
        while (draws := _count(total, ace) < 17).any():
            card = self.draw(int(draws.sum()))
            total[draws] += card
            ace[draws] |= card == 1
        return _count(total, ace)

    def observe(self, state: np.ndarray) -> np.ndarray:
        counted = _count(state[:, 0], state[:, 1])
        rows = np.zeros((len(state), _SUMS + _CARDS + 2), dtype=np.float32)
        each = np.arange(len(state))
        rows[each, counted] = 1
        rows[each, _SUMS + state[:, 2]] = 1
        rows[each, _SUMS + _CARDS + (counted != state[:, 0])] = 1
        return rows


def _count(total: np.ndarray, ace: np.ndarray) -> np.ndarray:
    """What hands count: an ace is 11 where that does not bust."""
    return np.where(ace.astype(bool) & (total + 10 <= 21), total + 10, total)
