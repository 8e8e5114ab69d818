"""Plans for a fleet's pods: revisions, rollout, manifests, and what is read back from them."""
