"""`rlscale sweep`: measure how many optimizer steps and observations a task's goals cost at every batch size.

`options` makes a plan from what a user types, `plan` says which trials follow from the results so far, `design` which batch size
and rate say most next, `kinds` how a trial is set up: of a task with an environment, or of one with examples (`supervised`).
`trial` trains a run until its goals are reached, `run` distributes the trials over Ray and records each as it ends, and `display`
shows the progress. `next_command` says which command would sharpen a sweep.

What a trial leaves behind is `rlscale.records.trial.TrialResult`; the response surface is `rlscale.frontier.fit_surface`. Start
with `plan`. Nothing is imported here, so that the command line stays fast.
"""
