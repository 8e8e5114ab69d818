"""A real Kubernetes and a real Kafka on one Linux machine, without an engine, a registry or a change to the host.

The package builds Kubernetes, etcd, Helm and CoreDNS from Go modules and collects Kafka's jars, keeps both in a cache
by version, and starts a one-node cluster inside network, mount and process namespaces of its own. It is a tool of the
project: neither the operator nor the worker imports it, and it imports nothing outside Python's standard library, so
that a bare ``python3`` can run it before any virtual environment exists.
"""
