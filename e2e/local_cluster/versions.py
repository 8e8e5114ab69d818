"""The versions of everything the cluster is made of, in one place."""

__all__ = ["COREDNS", "ETCD", "HELM", "KAFKA", "KUBERNETES", "SPARK"]

KUBERNETES = "1.35.8"
ETCD = "3.6.14"
HELM = "4.2.4"
COREDNS = "1.14.7"
SPARK = "4.0.0"
KAFKA = "4.3.1"
