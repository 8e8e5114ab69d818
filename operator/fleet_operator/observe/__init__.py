"""Observation of Kafka clusters, and the few changes that the operator makes there.

One thread for each KafkaCluster owns one `NetworkClient`; it looks at all groups of that cluster together, so that
the number of requests grows with the brokers and not with the groups. What it sees leaves as frozen values of
`planning.observation`. Nothing here knows Kubernetes.
"""
