"""The ladder: sweeps of tasks from easy to hard, registered before they are looked at (docs/preregistration.md).

`rungs.toml` spells every field of every rung's protocol, `rungs` reads it, and `climb` runs the rungs one after another from
the commit that the file names and says how far they are; `again` runs one with other seeds, and `storage` runs either and
keeps its compact record. `page` writes docs/ladder.md from the records, with other `readings` of the rule and what was seen
`afterwards`, and `forecasts` puts to them the rule by which a sweep says how much longer it will take. What is concluded from
them is the business of `rlscale.analysis.verdict` and of `rlscale compare`.

    python -m rlscale.benchmarks.measurements.ladder climb|collect|status|page|again|forecasts
"""
