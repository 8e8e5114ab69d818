"""Observes Kafka clusters, and makes the few changes in Kafka that the operator needs. Independent of Kubernetes.

One thread per Kafka connection owns one `NetworkClient` and polls the groups of its cluster together, so that the
number of requests grows with the number of brokers and not with the number of groups.
"""
