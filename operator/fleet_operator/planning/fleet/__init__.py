"""Planning of a fleet's pods (revisions, rollouts, manifests), and parsers of their objects."""
