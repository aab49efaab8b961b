"""Training with a measured gradient noise: rollout workers, learners, and the runs that connect them.

One run reads top to bottom: `config` (its settings) and `checks`, `train` (the whole run), `setup` (what it needs before its
processes start), `session` (one iteration: sample, learn, row). `stopping` is Ctrl-C and the end of its time, `checkpoints`
what it leaves to go on from, to act with, or to branch from (`frozen`). One question each is answered by `compute` (which
device and precision), `devices` (what differs on an accelerator), `memory` (how large the fragments are), `idle_options`
(which options would do nothing), `machine` (what the run was made with) and `metrics` (what a cluster's dashboards show).

The rooms: `networks` (policy and value networks), `rollout` (from a policy to fragments of experience), `learning` (from
fragments to an optimizer step and its block gradients), `supervised` (learning from examples), `cluster` (Ray), `rllib` and
`sb3` (the noise measurement inside a job of RLlib or Stable-Baselines3; `job_record` is what their records have in common).

Environments are one floor below, in `rlscale.envs`; the command, the sweeps and the measurements are one floor above, in
`rlscale.benchmarks`.
Start with `train`. This file imports nothing, so that the settings can be read without torch or Ray.
"""
