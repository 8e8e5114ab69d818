"""Local run of a handler (`fleet-consumer run --local`): replaces the operator and the pods on the user's machine."""
