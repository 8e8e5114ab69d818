"""Local run of a handler (`fleet-consumer run --local`): the job of operator and pods on one machine."""
