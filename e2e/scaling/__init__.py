"""Load for scaled groups on a cluster, and its effects: a paced producer, and a witness next to the brokers."""
