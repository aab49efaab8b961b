"""Scripts that measure this project's own speed and check its claims; nothing else in the package imports them.

Run one with `python -m rlscale.benchmarks.measurements.NAME`; `--help` lists its options. Each prints a table and writes a
record to `results/`, whose README says what came out.

* Speed: `sampling` (Ray actors beside bare processes), `learner` (blocks, precision, cost of the noise, several learners),
  `scaling` (whole runs that overlap sampling and learning), `memory` (peak against batch size), `peers` (beside other
  libraries), `rllib_noise` (the noise inside an RLlib job), `accelerator` (for whoever has one).
* Claims: `adaptive`, `studies` (the paper's), `goal_detection` (of the sweep), `unharmed`, `chaos` (learning survives overlap and
  faults), `cluster_simulation` (of `rlscale workers`).

`measuring` holds what they share. Start with it and `scaling`.
"""
