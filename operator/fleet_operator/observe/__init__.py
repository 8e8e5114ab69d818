"""Observes Kafka clusters, and makes the few changes in Kafka that the operator needs. Independent of Kubernetes.

For each Kafka connection, one thread owns a `NetworkClient` and polls all groups of the cluster together. So the number
of requests grows with the number of brokers, not with the number of groups.
"""
