"""Local run of a handler (`fleet-consumer run --local`): does the work of the operator and the pods on one machine."""
