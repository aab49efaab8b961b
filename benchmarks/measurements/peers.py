"""End-to-end speed beside Stable-Baselines3, RLlib and TorchRL: same game, network, epochs, mini-batch and machine.

    python -m rlscale.benchmarks.measurements.peers [--rounds N] [--systems NAME ...] [--out FILE]  (pip install 'rlscale[peers]')

Pong, 8 environments x 128 steps, 4 epochs, mini-batch 256, Nature CNN. Every system runs in a process of its own, one after
the other, several rounds; within a process the first two iterations are not counted. rlscale runs twice: as the peers do,
and measuring the joint noise of every optimizer step of the first epoch (not that of single losses and of whole iterations,
which is due in the first iterations and then rarely). Machines drift, so a ratio is taken within a round, against the fastest
system of the library in that round.

Sample Factory is missing: 2.1.1 wants numpy < 2 and gymnasium < 1 and does not install beside this project; 1.123.0, which pip
falls back to, makes its games with the old gym, where ale-py no longer registers any.
"""

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import nn

from rlscale.cpus import usable_cpus

from .measuring import (
    NATURE,
    NO_HEADS,
    NO_ITERATION,
    map_in_processes,
    median_and_spread,
    print_table,
    require_known,
    train,
    write_result,
)

ENVIRONMENTS, STEPS, EPOCHS, MINI_BATCH = 8, 128, 4, 256
BATCH = ENVIRONMENTS * STEPS
WARM_UP = 2
CORES = 2
LIBRARIES = ("Stable-Baselines3", "RLlib", "TorchRL")


def ours(precision: str, *, noise: bool) -> Callable[[int], list[float]]:
    """Observations per second of each iteration of `rlscale train` on two Ray actors, from its record."""

    def run(iterations: int) -> list[float]:
        words = ["--environments", ENVIRONMENTS, "--rollout-length", STEPS, "--epochs", EPOCHS, "--mini-batch", MINI_BATCH]
        words += ["--precision", precision, "--actors", CORES, *NO_HEADS, *NO_ITERATION]
        words += [] if noise else ["--joint-noise-period", 0]
        words += ["--optimizer-steps", (iterations + WARM_UP) * EPOCHS * BATCH // MINI_BATCH]
        rows = train("atari/pong", "--network", NATURE, *words).rows
        seconds = [0.0] + [row["seconds"] for row in rows]
        return [
            row["batch_observations"] / (after - before) for row, before, after in zip(rows, seconds, seconds[1:], strict=False)
        ][WARM_UP:]

    return run


def stable_baselines3(parallel: bool) -> Callable[[int], list[float]]:
    """SB3's PPO on its own Atari wrappers, environments in this process or each in its own."""

    def run(iterations: int) -> list[float]:
        import ale_py
        import gymnasium
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.env_util import make_atari_env
        from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

        gymnasium.register_envs(ale_py)
        env = make_atari_env(
            "ALE/Pong-v5",
            ENVIRONMENTS,
            seed=0,
            env_kwargs={"frameskip": 1, "repeat_action_probability": 0.0},
            vec_env_cls=SubprocVecEnv if parallel else DummyVecEnv,
            vec_env_kwargs={"start_method": "fork"} if parallel else None,  # a fresh process would not know the Atari ids
        )
        model = PPO(
            "CnnPolicy",
            VecFrameStack(env, 4),
            n_steps=STEPS,
            batch_size=MINI_BATCH,
            n_epochs=EPOCHS,
            learning_rate=2.5e-4,
            clip_range=0.2,
            ent_coef=0.01,
            device="cpu",
        )
        starts: list[float] = []

        class Clock(BaseCallback):  # type: ignore[misc]  # untyped where the peers are not installed
            def _on_step(self) -> bool:
                return True

            def _on_rollout_start(self) -> None:
                starts.append(time.perf_counter())

        model.learn(BATCH * (iterations + WARM_UP + 1), callback=Clock())
        env.close()
        return [BATCH / (b - a) for a, b in itertools.pairwise(starts)][WARM_UP : WARM_UP + iterations]

    return run


def rllib(iterations: int) -> list[float]:
    """RLlib's PPO, new API stack, its own Atari wrappers, a runner on each core and the learner in this process."""
    import ale_py
    import gymnasium
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
    from ray.tune.registry import register_env

    ray.init("local", num_cpus=CORES + 1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    def make(_: Any) -> Any:
        gymnasium.register_envs(ale_py)
        env = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
        return wrap_atari_for_new_api_stack(env, dim=84, framestack=4)

    register_env("pong", make)
    config = (
        PPOConfig()
        .environment("pong")
        .env_runners(num_env_runners=CORES, num_envs_per_env_runner=ENVIRONMENTS // CORES, rollout_fragment_length=STEPS)
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=BATCH,
            minibatch_size=MINI_BATCH,
            num_epochs=EPOCHS,
            lr=2.5e-4,
            entropy_coeff=0.01,
            grad_clip=0.5,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]],
                conv_activation="relu",
                head_fcnet_hiddens=[512],
                vf_share_layers=True,
            )
        )
    )
    algorithm = config.build_algo()
    rates, sampled = [], 0.0
    for iteration in range(iterations + WARM_UP):
        started = time.perf_counter()
        result = algorithm.train()
        seconds = time.perf_counter() - started
        now = float(result["env_runners"]["num_env_steps_sampled_lifetime"])
        if iteration >= WARM_UP:
            rates.append((now - sampled) / seconds)
        sampled = now
    algorithm.stop()
    ray.shutdown()
    return rates


class Scale(nn.Module):
    """Bytes to [0, 1], channels last; in the network, so that TorchRL's collectors hand over and keep bytes."""

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return frames.contiguous(memory_format=torch.channels_last).float() / 255


def torchrl(iterations: int) -> list[float]:
    """TorchRL's PPO, synchronous: a collector process on each core, each stepping ale-py's vector environment.

    The fastest of what was tried. Slower: Gymnasium's Atari wrappers in a `SerialEnv` per collector, one collector in this
    process with the vector environment or with a `ParallelEnv`, and the network in the default memory layout. `torch.compile`
    of the loss gained nothing. Values come from the collectors, and the trunk runs once per loss.
    """
    from ale_py.vector_env import AtariVectorEnv
    from tensordict.nn import (
        ProbabilisticTensorDictModule,
        ProbabilisticTensorDictSequential,
        TensorDictModule,
        TensorDictSequential,
    )
    from torch.distributions import Categorical
    from torchrl.collectors import MultiSyncCollector
    from torchrl.envs import GymWrapper
    from torchrl.modules import MLP, ConvNet
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    def make() -> Any:
        env = AtariVectorEnv("pong", ENVIRONMENTS // CORES, num_threads=1, autoreset_mode="SameStep")
        return GymWrapper(env, categorical_action_encoding=True)

    convolutions = ConvNet(
        in_features=4, num_cells=[32, 64, 64], kernel_sizes=[8, 4, 3], strides=[4, 2, 1], activation_class=nn.ReLU
    ).to(memory_format=torch.channels_last)
    dense = MLP(in_features=3136, out_features=512, num_cells=[], activation_class=nn.ReLU, activate_last_layer=True)
    trunk = TensorDictModule(nn.Sequential(Scale(), convolutions, dense), ["observation"], ["hidden"])
    head = TensorDictModule(nn.Linear(512, 6), ["hidden"], ["logits"])
    value = TensorDictModule(nn.Linear(512, 1), ["hidden"], ["state_value"])
    choice = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=Categorical, return_log_prob=True, default_interaction_type="random"
    )
    critic = TensorDictSequential(trunk, value)
    loss = ClipPPOLoss(
        ProbabilisticTensorDictSequential(trunk, head, choice),
        value,
        clip_epsilon=0.2,
        entropy_coeff=0.01,
        critic_coeff=0.5,
        loss_critic_type="l2",
        normalize_advantage=True,
        functional=False,
    )
    advantages = GAE(gamma=0.99, lmbda=0.95, value_network=None)
    optimizer = torch.optim.Adam(loss.parameters(), lr=2.5e-4, eps=1e-5, fused=True)
    collector = MultiSyncCollector(
        [make] * CORES,
        ProbabilisticTensorDictSequential(trunk, value, head, choice),
        frames_per_batch=BATCH,
        total_frames=BATCH * (iterations + WARM_UP),
        cat_results=0,
        num_threads=CORES,  # of the learner, which the collectors wait for
        num_sub_threads=1,
    )
    rates, started = [], time.perf_counter()
    for data in collector:
        with torch.no_grad():
            last = critic(data["next"][:, -1].select("observation"))["state_value"]
            data["next", "state_value"] = torch.cat([data["state_value"][:, 1:], last.unsqueeze(1)], dim=1)
            advantages(data)
        batch = data.select("observation", "action", "action_log_prob", "advantage", "value_target").reshape(-1)
        for _ in range(EPOCHS):
            for indices in torch.randperm(BATCH).view(-1, MINI_BATCH):
                losses = loss(batch[indices])
                (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        collector.update_policy_weights_()
        now = time.perf_counter()
        rates.append(BATCH / (now - started))
        started = now
    collector.shutdown()
    return rates[WARM_UP:]


SYSTEMS: dict[str, Callable[[int], list[float]]] = {
    "rlscale, noise measured, float32": ours("float32", noise=True),
    "rlscale, float32": ours("float32", noise=False),
    "rlscale, noise measured, bfloat16": ours("bfloat16", noise=True),
    "rlscale, bfloat16": ours("bfloat16", noise=False),
    "Stable-Baselines3, one process, float32": stable_baselines3(False),
    "Stable-Baselines3, subprocesses, float32": stable_baselines3(True),
    "RLlib, 2 env runners, float32": rllib,
    "TorchRL, 2 collectors, float32": torchrl,
}


def run_system(name: str, iterations: int) -> list[float]:
    """Observations per second of each iteration of that system, in a process of its own."""
    return SYSTEMS[name](iterations)


def main(
    rounds: int = 5,
    iterations: int = 6,
    systems: tuple[str, ...] = (),
    out: Path = Path("results/peers.json"),
) -> None:
    """Measure end-to-end speed beside other libraries.

    Args:
        rounds: Processes of each system.
        iterations: Counted iterations of each process.
        systems: Only these, by the names in the table: fewer systems leave time for more rounds. Without it, all.
        out: Where the record goes.
    """
    if (cores := usable_cpus()) != CORES:
        mend = f"Give it {CORES}: taskset -c 0,1 python -m {__spec__.name}"
        print(f"peers: all systems are set up for {CORES} cores, and this process has {cores}. {mend}", file=sys.stderr)
        sys.exit(2)
    require_known("--systems", systems, SYSTEMS)
    readings: dict[str, list[list[float]]] = {name: [] for name in systems or SYSTEMS}
    for turn in range(rounds):
        for name in readings:
            readings[name] += map_in_processes(run_system, [(name, iterations)])
            print(f"round {turn + 1}: {name}: {statistics.median(readings[name][-1]):,.0f} observations/s", flush=True)
    medians = {name: [statistics.median(rates) for rates in runs] for name, runs in readings.items()}
    fastest = {
        library: [max(turn) for turn in zip(*(m for name, m in medians.items() if name.startswith(library)), strict=True)]
        for library in LIBRARIES
        if any(name.startswith(library) for name in medians)
    }
    rows = [
        [
            name,
            median_and_spread([rate for rates in runs for rate in rates]),
            *(
                median_and_spread([own / peer for own, peer in zip(medians[name], fastest[library], strict=True)])
                for library in fastest
            ),
        ]
        for name, runs in readings.items()
    ]
    columns = ["system", "observations/s, median (middle half)", *(f"x {library}" for library in fastest)]
    print_table("Pong, PPO, 8 x 128 steps, 4 epochs, mini-batch 256, end to end", columns, rows)
    write_result(out, readings)


if __name__ == "__main__":
    tyro.cli(main)
