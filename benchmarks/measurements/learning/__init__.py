"""Measurements of what is learned, not only of how fast: whole training runs beside each other, over seeds.

* `unharmed`: with overlap, bfloat16 and several learners, and without.
* `adaptive`: with a batch size that follows the noise scale, and with the best fixed one.
* `shapes`: with many environments for few steps, and few environments for many.
* `invariance`: PPO and PPO-EWMA at a whole batch, a quarter and a sixteenth of it.
* `quick`: quick sweeps of the ladder's tasks beside the whole ones.
* `advised`: with what `rlscale advise` prints, and with the default settings, in the same time.
* `time_to_score`: until a stated return is reached, beside Stable-Baselines3.

What runs share lives in `..measuring`. Start with `unharmed`, the simplest.
"""
