"""What a person runs: the `rlscale` command, and the measurements of this project's own speed.

`cli` is the command; `commands` has one module for each of its subcommands, and `options` turns typed words into settings. Five
of them are studies with a room of their own: `sweep` measures the critical batch size of a run, `branch` that at one point of it;
`workers` measures a cluster and recommends how many rollout workers to use, `advise` a batch size as well; `bench` compares
machines. `steps` shows the progress of a series
of measurements, `console` is where commands print. `measurements` holds scripts that check this project's own speed and claims;
nothing else imports them.

How one run trains is in `rlscale.agents`, and the arithmetic of results in `rlscale` itself. Start with `cli` and `commands`.
This module imports nothing, so that `rlscale --help` stays quick.
"""
