"""How experience is made: rollout workers, the fleets they form, and the fragments they give.

A `RolloutWorker` steps groups of environments with a frozen policy; each call gives a `Fragment` of T steps of N environments.
`LocalFleet` has its worker in this process, `RayFleet` has Ray actors; both make the same fragments in the same order.
`ray_fleet` finds lost actors, `actors` starts and ends them, `assignment` keeps the books of which actor holds which group, and
`requests` holds what was asked for and not taken yet.
`actor_search` finds how many actors are worth their price.
`Evaluator` (`evaluate`) plays whole episodes with a frozen policy, outside of any run's observations.

Nothing is learned here. The environments themselves are in `rlscale.envs`, and how a Ray cluster is reached in `..cluster`.
Start with `fragments`, then `worker`, then `fleet`.
"""

from .actor_search import ActorSearch
from .evaluate import Evaluation, Evaluator
from .fleet import LocalFleet, LostActor, Sampled
from .fragments import Fragment, FragmentSummary, tensor_view
from .ray_fleet import Fleet, RayFleet
from .worker import RolloutWorker, WorkerSettings

__all__ = [
    "ActorSearch",
    "Evaluation",
    "Evaluator",
    "Fleet",
    "Fragment",
    "FragmentSummary",
    "LocalFleet",
    "LostActor",
    "RayFleet",
    "RolloutWorker",
    "Sampled",
    "WorkerSettings",
    "tensor_view",
]
