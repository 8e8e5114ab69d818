"""Observation of Kafka clusters, and the few changes that the operator makes there. Kubernetes is unknown here.

One thread for each KafkaCluster owns one `NetworkClient` and polls all groups of that cluster together, so that the
number of requests grows with the brokers and not with the groups.
"""
