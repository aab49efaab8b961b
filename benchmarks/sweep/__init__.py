"""`rlscale sweep`: measure how many optimizer steps and observations a task's goals cost at every batch size.

`options` makes a plan from what a user types, `plan` says which trials follow from the results so far, `trial` trains one of
them until its goals are reached, `run` distributes the trials over Ray and records each as it ends, and `display` shows the
progress.

What a trial leaves behind is `rlscale.records.trial.TrialResult`; which learning rate is the best is decided in
`rlscale.analysis.rates`; the frontier is fitted by `rlscale compare`. Start with `plan`. Nothing is imported here, so that the
command line stays fast.
"""
