"""Connect Four, 2048 and Snake, move for move against slow references that play on lists of cells."""

import numpy as np

from rlscale.envs.toy.connect_four import ConnectFourVectorEnv
from rlscale.envs.toy.game_2048 import Game2048VectorEnv
from rlscale.envs.toy.snake import SnakeVectorEnv


def four_in_a_row(discs):
    """Whether a set of cells (row, column) has four in a line."""
    return any(
        all((row + i * up, column + i * right) in discs for i in range(4))
        for row, column in discs
        for up, right in ((0, 1), (1, 0), (1, 1), (1, -1))
    )


def discs_of(observation):
    """(mine, theirs), each a set of cells (row, column)."""
    return [set(zip(*np.nonzero(cells), strict=True)) for cells in observation.reshape(2, 6, 7)]


def test_connect_four_by_its_rules():
    """100 boards, 150 steps of random columns, each judged on a list of cells."""
    env, rng = ConnectFourVectorEnv(100), np.random.default_rng(0)
    seen, _ = env.reset(seed=1)
    boards = [discs_of(row) for row in seen]
    assert {len(theirs) for _, theirs in boards} == {0, 1}, "who begins is drawn"
    fresh = np.ones(100, dtype=bool)
    ends = {-1: 0, 0: 0, 1: 0}
    answered = []
    full_columns = reset_rows = 0
    for _ in range(150):
        actions = rng.integers(0, 7, 100)
        after, reward, terminated, truncated, _ = env.step(actions)
        assert not truncated.any()
        for i in range(100):
            new = discs_of(after[i])
            if not fresh[i]:  # this step began a new game
                assert not new[0]
                assert all(row == 0 for row, _ in new[1])
                assert len(new[1]) < 2
                assert (reward[i], terminated[i]) == (0, False)
                boards[i], fresh[i] = new, True
                reset_rows += 1
                continue
            mine, theirs = boards[i]
            height = sum(column == actions[i] for _, column in mine | theirs)
            expected, ended = 0, False
            if height == 6:
                expected, ended = -1, True
                full_columns += 1
            else:
                mine = mine | {(height, int(actions[i]))}
                if four_in_a_row(mine):
                    expected, ended = 1, True
                elif len(mine | theirs) == 42:
                    ended = True
            assert new[0] == mine
            answer = new[1] - theirs
            if ended:
                assert not answer
            else:
                ((row, column),) = answer
                assert row == sum(c == column for _, c in mine | theirs)
                answered.append(column)
                if four_in_a_row(new[1]):
                    expected, ended = -1, True
                elif len(mine | new[1]) == 42:
                    ended = True
            assert (reward[i], terminated[i]) == (expected, ended)
            if ended:
                ends[expected] += 1
            boards[i], fresh[i] = new, not ended
    assert ends[-1] > 170
    assert ends[1] > 170
    assert full_columns > 7
    assert reset_rows > 340
    np.testing.assert_allclose(np.bincount(answered) / len(answered), 1 / 7, atol=0.02)


def test_a_full_board_of_connect_four_is_a_draw():
    """Columns in pairs of two, so that nobody has four; the agent's last disc fills the board."""
    env = ConnectFourVectorEnv(1)
    env.reset(seed=0)
    mine = [(row, column) for row in range(6) for column in range(7) if (row // 2 + column) % 2 == 0]
    theirs = [(row, column) for row in range(6) for column in range(7) if (row // 2 + column) % 2 == 1]
    assert not four_in_a_row(set(mine))
    assert not four_in_a_row(set(theirs))
    mine.remove((5, 6)) if (5, 6) in mine else theirs.remove((5, 6))
    env.state[0] = [sum(1 << (7 * column + row) for row, column in cells) for cells in (mine, theirs)]
    _, reward, terminated, _, _ = env.step(np.array([6]))
    assert (reward[0], terminated[0]) == (0, True)


def push_to_the_first(cells):
    """A row of exponents after a push to its first cell, and the sum of the tiles that became one."""
    tiles, merged, gained = [], [], 0
    for tile in cells:
        if not tile:
            continue
        if tiles and tiles[-1] == tile and not merged[-1]:
            tiles[-1], merged[-1] = tile + 1, True
            gained += 2 ** (tile + 1)
        else:
            tiles.append(int(tile))
            merged.append(False)
    return tiles + [0] * (4 - len(tiles)), gained


def push(board, action):
    """A (4, 4) board after a push to the left, up, to the right or down, and the reward."""
    board, gained = board.copy(), 0
    for i in range(4):
        row = board[i] if action in (0, 2) else board[:, i]
        cells, more = push_to_the_first(row[::-1] if action >= 2 else row)
        row[:] = cells[::-1] if action >= 2 else cells
        gained += more
    return board, gained


def test_the_references_of_2048_are_the_games_rules():
    assert push_to_the_first([1, 1, 1, 1]) == ([2, 2, 0, 0], 8)
    assert push_to_the_first([1, 1, 2, 0]) == ([2, 2, 0, 0], 4)
    assert push_to_the_first([0, 3, 0, 3]) == ([4, 0, 0, 0], 16)
    assert push_to_the_first([2, 1, 1, 0]) == ([2, 2, 0, 0], 4)


def test_2048_by_its_rules():
    """68 boards, 300 steps of random pushes, from boards of small tiles and of large ones."""
    env, rng = Game2048VectorEnv(68), np.random.default_rng(0)
    seen, _ = env.reset(seed=2)
    boards = seen.reshape(68, 4, 4, 16).argmax(-1)
    assert ((boards > 0).sum((1, 2)) == 2).all()
    env.state[:34] = rng.integers(0, 11, (34, 16))
    boards = env.state.reshape(68, 4, 4).astype(int)
    fresh = np.array([any((push(b, a)[0] != b).any() for a in range(4)) for b in boards])
    env.prev_done = ~fresh
    still, tiles, ended = 0, [], 0
    for _ in range(300):
        actions = rng.integers(0, 4, 68)
        after, reward, terminated, truncated, _ = env.step(actions)
        after = after.reshape(68, 4, 4, 16)
        assert (after.sum(-1) == 1).all()
        after = after.argmax(-1)
        assert not truncated.any()
        for i in range(68):
            if not fresh[i]:
                assert (after[i] > 0).sum() == 2
                assert (reward[i], terminated[i]) == (0, False)
                boards[i], fresh[i] = after[i], True
                continue
            expected, gained = push(boards[i], actions[i])
            assert reward[i] == gained
            added = after[i] != expected
            if (expected == boards[i]).all():
                assert not added.any()
                still += 1
            else:
                assert added.sum() == 1
                assert (expected[added] == 0).all()
                tiles.append(int(after[i][added][0]))
            over = all((push(after[i], action)[0] == after[i]).all() for action in range(4))
            assert terminated[i] == over
            ended += over
            boards[i], fresh[i] = after[i], not over
    assert still > 340
    assert ended > 34
    counts = np.bincount(tiles, minlength=3)
    assert counts[1] + counts[2] == len(tiles)
    assert abs(counts[2] / len(tiles) - 0.1) < 5 * np.sqrt(0.09 / len(tiles))


def test_a_game_of_2048_that_does_not_end_is_cut():
    """A push that moves nothing, for 2,000 steps."""
    env = Game2048VectorEnv(1)
    env.reset(seed=0)
    env.state[0] = 0
    env.state[0, 0] = 5
    for step in range(1, 2001):
        _, reward, terminated, truncated, _ = env.step(np.array([0]))
        assert (reward[0], terminated[0], truncated[0]) == (0, False, step == 2000)


STEPS = {0: (0, -1), 1: (-1, 0), 2: (0, 1), 3: (1, 0)}


def test_snake_by_its_rules():
    """100 boards, 400 steps towards the apple or anywhere, each also played as a list of cells, the head first."""
    env, rng = SnakeVectorEnv(100), np.random.default_rng(0)
    seen, _ = env.reset(seed=3)
    cells_of = lambda plane: {(int(r), int(c)) for r, c in zip(*np.nonzero(plane), strict=True)}  # noqa: E731
    snakes = [list(cells_of(row.reshape(3, 8, 8)[1])) for row in seen]
    fresh = np.ones(100, dtype=bool)
    apples, longest, ends, tails = 0, 1, 0, 0
    for _ in range(400):
        planes = seen.reshape(100, 3, 8, 8)
        heads = np.array([np.argwhere(board[1])[0] for board in planes])
        towards = np.array([np.argwhere(board[2])[0] for board in planes]) - heads
        along = np.where(towards[:, 1] < 0, 0, np.where(towards[:, 1] > 0, 2, np.where(towards[:, 0] < 0, 1, 3)))
        actions = np.where(rng.random(100) < 0.15, rng.integers(0, 4, 100), along)
        before = seen
        seen, reward, terminated, truncated, _ = env.step(actions)
        for i in range(100):
            body, head, apple = map(cells_of, seen[i].reshape(3, 8, 8))
            if not fresh[i]:
                assert (reward[i], terminated[i]) == (0, False)
                assert len(body) == 1
                assert body == head
                assert not apple & body
                snakes[i], fresh[i] = list(head), True
                continue
            snake = snakes[i]
            (target,) = cells_of(before[i].reshape(3, 8, 8)[2])
            new = (snake[0][0] + STEPS[actions[i]][0], snake[0][1] + STEPS[actions[i]][1])
            eats = new == target
            rest = snake if eats else snake[:-1]
            tails += new == snake[-1] and len(snake) > 2
            dies = new in rest or not (0 <= new[0] < 8 and 0 <= new[1] < 8)
            assert reward[i] == eats
            assert terminated[i] == dies
            if not dies:
                snakes[i] = [new, *rest]
                assert head == {new}
                assert body == set(snakes[i])
                assert len(apple) == 1
                assert not apple & body
                assert eats or apple == {target}
            apples += eats
            ends += dies
            longest = max(longest, len(snakes[i]))
            fresh[i] = not (terminated[i] or truncated[i])
    assert apples > 1700
    assert longest > 12
    assert ends > 170
    assert tails > 0, "a head may follow its own tail"


def test_a_snake_that_fills_the_board_has_won():
    """63 cells along a path through all rows; the last apple is before the head."""
    env = SnakeVectorEnv(1)
    env.reset(seed=0)
    path = [(row, column if row % 2 == 0 else 7 - column) for row in range(8) for column in range(8)]
    env.state[0] = 0
    for age, (row, column) in enumerate(path[:63], 1):
        env.state[0, 8 * row + column] = age
    (head, apple) = (8 * row + column for row, column in path[62:])
    env.state[0, -2:] = head, apple
    seen, reward, terminated, _, _ = env.step(np.array([0]))
    assert (reward[0], terminated[0]) == (1, True)
    assert seen[0, :64].all()
