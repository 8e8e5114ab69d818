"""Versions of all parts of the cluster."""

__all__ = [
    "AWS_SDK",
    "COREDNS",
    "DELTA",
    "ETCD",
    "HADOOP",
    "HELM",
    "ICEBERG",
    "KAFKA",
    "KEDA",
    "KUBERNETES",
    "SPARK",
    "SPARK_OPERATOR",
    "VERSITYGW",
]

KUBERNETES = "1.35.8"
ETCD = "3.6.14"
# The Helm of Kubernetes 1.35: both use the same modules, so a package is compiled once.
HELM = "4.1.4"
COREDNS = "1.14.7"
SPARK_OPERATOR = "2.5.2"
SPARK = "4.0.0"
KAFKA = "4.3.1"
KEDA = "2.19.0"
DELTA = "4.0.0"
ICEBERG = "1.10.0"
# Spark's version; the SDK is the one of the next patch of Hadoop.
HADOOP = "3.4.1"
AWS_SDK = "2.29.52"
VERSITYGW = "1.8.0"
