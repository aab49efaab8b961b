"""One run: network, rollout workers, their fleet, the learner, the training loop. Knows nothing of studies over runs."""
