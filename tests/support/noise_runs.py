"""Results of noise runs with planted sums."""

from rlscale.noise import RUN_WINDOW
from rlscale.records.trial import GoalCrossing, NoiseAtGoal, NoiseSums, TrialResult

BATCH = 512
FACTS = {"trace_cov": 1.0, "grad_sq": 1.0, "blocks": 32, "measurements": 20, "top_tenth_share": 0.1, "reason": None}


def trial_of(number, steps, trace, grad, metric="plain", head="joint", goal=4.0):
    """A noise run that reached the goal after so many steps, with those means in its windows of five updates."""
    sums = NoiseSums(head, metric, tuple(trace), tuple(grad), (RUN_WINDOW,) * len(trace))
    crossing = GoalCrossing(
        goal, steps, None if steps is None else (steps, steps), None if steps is None else steps * BATCH, None
    )
    alone = NoiseAtGoal(head, 300.0, (200.0, 400.0), **FACTS, goal=goal, quantity="cumulative", gain=0.9)
    what = {"batch_size": BATCH, "rate_index": None, "learning_rate": 1e-3, "seed": number, "most_optimizer_steps": None}
    more = {"limit": None, "measures_noise": True, "last_goal": None, "state": "finished", "reason": None}
    made = RUN_WINDOW * len(trace)
    return TrialResult(
        id=f"noise-{number}",
        stage="noise",
        goals=(crossing,),
        noise=(alone,),
        noise_sums=(sums,),
        optimizer_steps=made,
        observations=made * BATCH,
        **what,
        **more,
    )
