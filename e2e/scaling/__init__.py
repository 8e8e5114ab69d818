"""Load for scaled groups on a cluster, and what becomes of it: a paced producer, and a witness beside the brokers."""
