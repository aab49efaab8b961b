"""Scripts that measure this project's own speed and check its claims; nothing else in the package imports them.

Run one with `python -m rlscale.benchmarks.measurements.NAME`; `--help` lists its options. Each prints a table and writes a
record to `results/`, whose README says what came out.

* Speed: `sampling` (Ray actors beside bare processes), `learner` (blocks, precision, cost of the noise, several learners),
  `scaling` (whole runs that overlap sampling and learning), `memory` (peak against batch size), `peers` (beside other
  libraries), `limits` (where a second goes), `rllib_noise` (the noise inside an RLlib job), `accelerator` (for a GPU).
* Claims: `studies` (the paper's), `goal_detection` (of the sweep), `endurance` (learning survives faults, for
  minutes or hours), `sweep_designs` and `branch_coverage` (intervals hold), `cluster_simulation` (of `rlscale workers`).
* `learning`: whole training runs beside each other, among them what `rlscale advise` advises. `ladder`: the ladder of tasks.

`measuring` holds what they share. Start with it and `scaling`.
"""
