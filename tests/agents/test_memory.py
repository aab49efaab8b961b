"""What a batch takes is known before it is made: exact bytes, and one line with the largest batch that fits."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from making import make_fragment

from rlscale.agents.config import TrainConfig, default_config
from rlscale.agents.learning import Learner, learn_batch
from rlscale.agents.learning.losses import HEADS
from rlscale.agents.learning.optimizer import BlockOptimizer
from rlscale.agents.memory import _spare_bytes, fragment_bytes, gradient_rows, memory_plan, require_network
from rlscale.agents.rollout.fleet import LocalFleet
from rlscale.agents.rollout.worker import WorkerSettings
from rlscale.control_groups import available_bytes
from rlscale.envs import find_task
from rlscale.errors import UsageError

PONG = find_task("atari/pong")


def config_for(task=PONG, update=None, **rollout) -> TrainConfig:
    config = default_config(task)
    return replace(config, rollout=replace(config.rollout, **rollout), update=replace(config.update, **(update or {})))


@pytest.mark.parametrize(
    ("task_id", "network"), [("atari/pong@42", "small_cnn"), ("classic/cartpole", "mlp"), ("minatar/breakout", "minatar_cnn")]
)
def test_the_bytes_of_a_fragment_are_what_it_holds(task_id, network):
    task = find_task(task_id)
    fleet = LocalFleet(WorkerSettings(task, 4, 16, network, False, 1, True, 0, 0))
    fleet.request(fleet._worker._flat.numpy().copy(), 0, 1)
    fragment = fleet.take().fragment
    episodes = fragment.episode_return.nbytes + fragment.episode_length.nbytes + fragment.bootstrap_value.nbytes
    assert fragment.nbytes - episodes == fragment_bytes(task, 16, 4)


def test_a_million_observations_are_cut_into_small_fragments():
    """2^20 observations of 64 environments: 128 rounds of two fragments of at most 64 MiB, single frames and 3 carried in."""
    plan = memory_plan(config_for(environments=64, actors=2, batch_size=2**20), PONG, store=16 << 30)
    assert (plan.environments, plan.groups, plan.batch_fragments) == (32, 2, 256)
    assert plan.fragment_bytes == 32 * ((128 + 3) * 7056 + 128 * 27)
    assert plan.most_fragments == 256
    assert plan.batch_fragments * plan.fragment_bytes < 1.03 * 2**20 * 7056


def test_the_store_is_made_so_large_that_ray_spills_nothing(monkeypatch):
    """Ray writes to disk from 80% of its store on."""
    import rlscale.agents.memory

    monkeypatch.setattr(rlscale.agents.memory, "_shared_memory", lambda: 1 << 40)
    plan = memory_plan(config_for(environments=64, actors=2, batch_size=2**20), PONG, store=16 << 30)
    held = plan.most_fragments * plan.fragment_bytes
    assert held + (64 << 20) < 0.8 * plan.store_bytes < 1.2 * held


@pytest.mark.parametrize("lag", [0, 1])
def test_the_largest_batch_that_fits_is_named(lag):
    config = config_for(environments=16, batch_size=1 << 20, lag=lag)
    with pytest.raises(UsageError, match="--batch-size") as caught:
        memory_plan(config, PONG, store=2 << 30)
    largest = int(str(caught.value).split("largest that can is ")[1].split(",  ")[0].split(", give")[0].replace(",", ""))
    fits = replace(config, rollout=replace(config.rollout, batch_size=largest))
    too_many = replace(config, rollout=replace(config.rollout, batch_size=largest + 2048))
    plan = memory_plan(fits, PONG, store=2 << 30)
    assert plan.most_fragments * plan.fragment_bytes <= 2 << 30
    assert plan.most_fragments == (1 + lag) * plan.batch_fragments
    with pytest.raises(UsageError):
        memory_plan(too_many, PONG, store=2 << 30)
    assert "--stream --epochs 1 --mini-batch None --advantage-scale running" in str(caught.value)


def test_too_many_environments_for_one_round():
    with pytest.raises(UsageError, match=r"--environments: .* 147,968 \(--environments 1156\)"):
        memory_plan(config_for(environments=4096, actors=2), PONG, store=1 << 30)
    assert memory_plan(config_for(environments=1156, actors=2), PONG, store=1 << 30).batch_fragments == 34
    with pytest.raises(UsageError):
        memory_plan(config_for(environments=1158, actors=2), PONG, store=1 << 30)
    with pytest.raises(UsageError, match="leave no memory"):
        memory_plan(config_for(environments=4096, actors=2), PONG, store=0)


def test_a_stream_is_never_asked_more_memory_than_the_batch_it_is_made_of():
    """512 actors make one fragment each: two under way for each of them would be twice the batch."""
    streamed = {"stream": True, "epochs": 1, "mini_batch": None, "advantage_scale": "running"}
    sizes = {"environments": 512 * 8, "rollout_length": 128, "actors": 512, "ray_address": "auto", "memory": "1TiB"}
    held, stream = (memory_plan(config_for(update=update, **sizes), PONG, 1 << 40) for update in ({}, streamed))
    assert stream.most_fragments == held.most_fragments == 512
    lagging = memory_plan(config_for(update=streamed, **sizes, lag=1), PONG, 1 << 40)
    assert lagging.most_fragments == 1024
    several = memory_plan(config_for(update=streamed, **{**sizes, "batch_size": 4 * 512 * 8 * 128}), PONG, 1 << 40)
    assert several.most_fragments == 2 * 512 + 1


def test_a_stream_is_named_only_where_it_would_fit():
    update = {"epochs": 1, "mini_batch": None}
    sizes = {"environments": 512, "rollout_length": 128, "actors": 64, "ray_address": "auto", "memory": "1TiB"}
    with pytest.raises(UsageError, match=r"or start Ray's nodes with a larger --object-store-memory$"):
        memory_plan(config_for(update=update, **sizes), PONG, 256 << 20)
    with pytest.raises(UsageError, match=r", start Ray's nodes .*, or learn from it as it comes: --stream"):
        memory_plan(config_for(update=update, **sizes, batch_size=8 * 512 * 128), PONG, 2 << 30)


def test_a_stream_takes_the_same_whatever_the_batch():
    streamed = {"stream": True, "epochs": 1, "mini_batch": None, "advantage_scale": "running"}
    plans = [
        memory_plan(config_for(update=streamed, environments=32, actors=2, batch_size=2**k), PONG, 1 << 30) for k in (14, 18, 26)
    ]
    assert len({plan.most_fragments * plan.fragment_bytes for plan in plans}) == 1
    assert plans[0].most_fragments == 5  # two an actor, one being read
    with pytest.raises(
        UsageError, match=r"--stream: the 5 fragments of .* more than Ray's object store has room for, 50 MiB\. Give"
    ):
        memory_plan(config_for(update=streamed, environments=32, actors=2, batch_size=2**16), PONG, store=50 << 20)
    with pytest.raises(UsageError, match=r"--memory: 50 MiB are less than the 5 fragments"):
        memory_plan(config_for(update=streamed, environments=32, actors=2, batch_size=2**16, memory="50MiB"), PONG)


def test_a_container_s_small_store_is_named_whatever_memory_is_given(monkeypatch):
    """Docker gives /dev/shm 64 MiB, where Ray's object store lies; without actors there is no store."""
    import rlscale.agents.memory

    monkeypatch.setattr(rlscale.agents.memory, "_shared_memory", lambda: 64 << 20)
    for memory in (None, "12GiB"):
        with pytest.raises(
            UsageError, match=r"^--batch-size: .* there are 32 MiB for it\. .* give Ray's object store .*--shm-size"
        ):
            memory_plan(config_for(environments=64, actors=2, batch_size=2**20, memory=memory), PONG)
    memory_plan(config_for(environments=64, batch_size=2**20, memory="12GiB"), PONG)
    monkeypatch.setattr(rlscale.agents.memory, "_shared_memory", lambda: 64 << 30)
    memory_plan(config_for(environments=64, actors=2, batch_size=2**20, memory="12GiB"), PONG)
    with pytest.raises(UsageError, match=r"give more --memory"):
        memory_plan(config_for(environments=64, actors=2, batch_size=2**20, memory="1GiB"), PONG)


def test_a_batch_for_a_cluster_is_not_checked_against_this_machine(monkeypatch):
    """Its store can be asked once it is joined; until then what was given with --memory alone binds."""
    there = {"environments": 64, "actors": 2, "batch_size": 2**20, "ray_address": "there:1"}
    monkeypatch.setattr("rlscale.agents.memory.available_bytes", lambda: 1 << 20)
    monkeypatch.setattr("rlscale.agents.memory._shared_memory", lambda: 1 << 20)
    memory_plan(config_for(**there), PONG)
    with pytest.raises(UsageError, match=r"there are 1 GiB for it"):
        memory_plan(config_for(**there, memory="1GiB"), PONG)


def test_a_cluster_s_small_store_is_named():
    config = config_for(environments=64, actors=2, batch_size=2**20, ray_address="auto", memory="12GiB")
    with pytest.raises(UsageError, match=r"there are 4 GiB for it\. .*, start Ray's nodes with a larger --object-store-memory"):
        memory_plan(config, PONG, store=4 << 30)


def test_the_machine_sets_the_budget(monkeypatch):
    import rlscale.agents.memory

    monkeypatch.setattr(rlscale.agents.memory, "available_bytes", lambda: 4 << 30)
    memory_plan(config_for(environments=16, batch_size=2**18), PONG)
    with pytest.raises(UsageError, match="--batch-size"):
        memory_plan(config_for(environments=16, batch_size=2**20), PONG)
    memory_plan(config_for(environments=16, batch_size=2**20, memory="8GiB"), PONG)  # the user may know better


def test_where_transitions_are_shuffled_every_learner_has_the_whole_batch(monkeypatch):
    import rlscale.agents.memory

    monkeypatch.setattr(rlscale.agents.memory, "available_bytes", lambda: 6 << 30)
    monkeypatch.setattr(rlscale.agents.memory, "_shared_memory", lambda: 1 << 40)
    task = find_task("classic/cartpole")
    largest = {}
    for shuffle in ("environments", "transitions"):
        update = {"learners": 2, "epochs": 1, "mini_batch": None, "shuffle": shuffle}
        with pytest.raises(UsageError, match="--batch-size") as caught:
            memory_plan(config_for(task, update, environments=256, rollout_length=16, batch_size=2**30), task)
        largest[shuffle] = int(str(caught.value).split("largest that can is ")[1].split(", give")[0].replace(",", ""))
    # Of an observation the fragment has 43 bytes, and each learner that reads it 67 and those of the action.
    once, twice = (43 + copies * (67 + 8) for copies in (1, 2))
    assert largest["environments"] / largest["transitions"] == pytest.approx(twice / once, rel=0.01)


@pytest.mark.parametrize(
    ("actors", "learners", "processes", "vectors"),
    [(0, 1, 700, 20 + 3), (2, 1, 700 + 2 * 350 + 400, 20 + 2 * 3), (2, 2, 700 + 2 * 350 + 400 + 2 * 500, 2 * 20 + 2 * 3)],
)
def test_what_is_spare_is_left_by_processes_fragments_environments_and_network(monkeypatch, actors, learners, processes, vectors):
    """MiB of the run, its actors, Ray and several learners; a fragment in each worker; vectors of the parameters."""
    monkeypatch.setattr("rlscale.agents.memory.available_bytes", lambda: 8 << 30)
    task = find_task("classic/cartpole")
    task = replace(task, cost=replace(task.cost, memory_bytes=3 << 20))
    streamed = {"stream": True, "epochs": 1, "mini_batch": None, "advantage_scale": "running"}
    config = config_for(task, {**streamed, "device": "cuda", "learners": learners}, environments=64, actors=actors)
    fragments, environments = max(actors, 1) * (10 << 20), 64 * (3 << 20)
    parameters = 2 * (5 * 64 + 65 * 64) + 65 * 2 + 65
    taken = (processes << 20) + fragments + environments + 4 * vectors * parameters
    assert _spare_bytes(config, task, 10 << 20) == int(0.9 * (8 << 30)) - taken


@pytest.mark.parametrize(
    ("files", "cached"),
    [
        (("memory.max", "memory.current", "memory.stat"), "anon 1024\ninactive_file 3145728\nactive_file 1"),
        (
            ("memory/job/memory.limit_in_bytes", "memory/job/memory.usage_in_bytes", "memory/job/memory.stat"),
            "inactive_file 0\ntotal_inactive_file 3145728\ntotal_active_file 1",
        ),
    ],
)
def test_files_that_the_kernel_can_forget_are_no_used_memory_of_a_container(tmp_path, monkeypatch, files, cached):
    """As Kubernetes counts: what was read from disk long ago gives way to whoever needs the memory."""
    monkeypatch.setattr("rlscale.control_groups.ROOT", tmp_path)
    monkeypatch.setattr("rlscale.control_groups.OWN", tmp_path / "own")
    (tmp_path / "own").write_text("4:memory:/job\n0::/\n")
    (tmp_path / "memory" / "job").mkdir(parents=True)
    for name, text in zip(files, (str(16 << 20), str(9 << 20), cached), strict=True):
        (tmp_path / name).write_text(text + "\n")
    assert available_bytes() == (16 - 9 + 3) << 20
    (tmp_path / files[2]).unlink()
    assert available_bytes() == (16 - 9) << 20


@pytest.mark.parametrize("task_id", ["minatar/breakout", "atari/pong", "classic/cartpole"])
def test_the_defaults_run_on_a_laptop_of_4_gib(monkeypatch, task_id):
    """Of which other programs have taken a third."""
    monkeypatch.setattr("rlscale.agents.memory.available_bytes", lambda: 2600 << 20)
    task = find_task(task_id)
    memory_plan(default_config(task), task)


WIDE = {"network": "mlp", "width": 4096, "epochs": 1, "mini_batch": None, "device": "cpu"}


def test_block_gradients_that_do_not_fit_are_refused_with_the_blocks_that_do(monkeypatch):
    """34 million parameters: 137 MB for each block of each loss, and for everything that is kept of the parameters."""
    monkeypatch.setattr("rlscale.agents.memory.available_bytes", lambda: 16 << 30)
    task = find_task("toy/digits")
    config = config_for(task, WIDE, environments=32, rollout_length=4)
    with pytest.raises(UsageError) as refusal:
        memory_plan(config, task)
    assert str(refusal.value) == (
        "--blocks: learning with 34,140,171 parameters, gradients of 136 blocks among it, takes 20.2 GiB, and there are 13.7 GiB "
        "for it. Use --blocks 16, or a narrower network (--width)"
    )
    with pytest.raises(UsageError, match=r"--width: learning with 34,140,171 parameters, .* it. Use a narrower network"):
        require_network(config, task)  # as a sweep does, whose blocks nobody chooses
    memory_plan(replace(config, noise=replace(config.noise, blocks=16)), task)
    with pytest.raises(UsageError, match="--blocks"):
        memory_plan(replace(config, noise=replace(config.noise, blocks=17)), task)
    monkeypatch.setattr("rlscale.agents.memory.available_bytes", lambda: 6 << 30)
    with pytest.raises(UsageError, match=r"--width: .* for it. Use a narrower network"):
        memory_plan(config, task)
    memory_plan(config_for(task, WIDE, environments=32, rollout_length=4, memory="1GiB"), task)  # the user may know better


def test_an_accelerator_holds_its_block_gradients_itself(monkeypatch):
    monkeypatch.setattr("rlscale.agents.memory.available_bytes", lambda: 16 << 30)
    task = find_task("toy/digits")
    memory_plan(config_for(task, {**WIDE, "device": "cuda"}, environments=32, rollout_length=4), task)


@pytest.mark.parametrize(
    "noise", [{}, {"value_noise_period": 0}, {"iteration_noise_period": 0}, {"joint_noise_period": 0}, {"blocks": 5}]
)
@pytest.mark.parametrize(
    "update",
    [
        {"epochs": 1, "mini_batch": None},
        {"epochs": 1, "mini_batch": 64, "shuffle": "environments"},
        {"epochs": 1, "mini_batch": 64, "shuffle": "transitions"},
        {"epochs": 1, "mini_batch": None, "stream": True, "advantage_scale": "running"},
    ],
)
def test_the_rows_of_gradients_are_those_that_the_learner_makes(monkeypatch, update, noise):
    """Matrices of single losses come and go, that of the joint loss stays; and the largest counts once more."""
    task = find_task("classic/cartpole")
    config = config_for(task, update, environments=16, rollout_length=8)
    config = replace(config, noise=replace(config.noise, **noise))
    learner = Learner(config, task, torch.device("cpu"), False)
    make_room, single, joint = BlockOptimizer.make_room, [], []

    def follow(optimizer, heads, blocks):
        matrices = make_room(optimizer, heads, blocks)
        single.append([len(matrix) for head, matrix in matrices.items() if head in HEADS])
        joint.append(len(matrices.get("joint", ())))
        return matrices

    monkeypatch.setattr(BlockOptimizer, "make_room", follow)
    learn_batch(learner, [make_fragment(np.random.default_rng(0), 8, 16)], 0, 1e-3)
    largest = max([*single[0], *joint])
    assert gradient_rows(config) == sum(single[0]) + max(joint) + largest
    assert all(sum(rows) <= sum(single[0]) for rows in single)
