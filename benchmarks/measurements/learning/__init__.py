"""Measurements of what is learned, not only of how fast: whole training runs beside each other, over seeds.

* `beside`: kinds of settings over seeds: overlap, bfloat16 and several learners; many environments or long rollouts; PPO and
  PPO-EWMA at three batch sizes.
* `adaptive`: with a batch size that follows the noise scale, and with the best fixed one.
* `quick`: quick sweeps of the ladder's tasks beside the whole ones.
* `advised`: with what `rlscale advise` prints, and with the default settings, in the same time.
* `noise_without_sweep`: the noise scale of single runs of games that no sweep has measured.
* `time_to_score`: until a stated return is reached, beside Stable-Baselines3.

What runs share lives in `..measuring`. Start with `beside`.
"""
