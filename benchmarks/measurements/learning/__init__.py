"""Measurements of what is learned, not only of how fast: whole training runs beside each other, over seeds.

* `invariance`: PPO and PPO-EWMA at a whole batch, a quarter and a sixteenth of it.

What runs share lives in `..measuring`.
"""
