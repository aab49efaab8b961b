"""What a learner reads of fragments, for references that a test computes by itself."""

from rlscale.agents.learning.batch import arrange_slots


def read_batch(learner, fragments, iteration=0):
    """The batch that the learner has begun with these fragments, as it would learn from it in `finish`."""
    slots = arrange_slots([f.group for f in fragments], fragments[0].environments)
    learner.begin(slots, iteration)
    return learner._read(list(zip(slots, fragments, strict=True)))
