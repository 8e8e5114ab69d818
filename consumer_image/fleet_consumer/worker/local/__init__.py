"""`fleet-consumer run --local`: a group on a laptop, without Kubernetes, with what its workers do in a pod."""
