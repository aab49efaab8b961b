"""`rlscale branch`: the local critical batch size of a run, from short branches that start at its checkpoint.

`options` holds what can be typed and the check that it fits. `branches` is one branch, in a process of its own. `run` measures
the noise at the checkpoint and makes the branches, `findings` says what they show. The curve is `rlscale.frontier.fit_branches`.
"""
