"""Training with a measured gradient noise: rollout workers, learners, and the runs that connect them.

One run reads top to bottom: `config` (its settings) and `checks`, `train` (the whole run), `setup` (what it needs before its
processes start), `session` (one iteration: sample, learn, row). `compute`, `memory`, `machine` and `metrics` answer one question
each: which device and precision, how large the fragments are, what the run was made with, and what a cluster's dashboards show.

The rooms: `networks` (policy and value networks), `rollout` (from a policy to fragments of experience), `learning` (from
fragments to an optimizer step and its block gradients), `cluster` (Ray), `rllib` and `sb3` (the noise measurement inside a job of
RLlib or Stable-Baselines3; `job_record` is what their records have in common).

Environments are one floor below, in `rlscale.envs`; the command, the sweeps and the measurements are one floor above, in
`rlscale.benchmarks`.
Start with `train`. This file imports nothing, so that the settings can be read without torch or Ray.
"""
