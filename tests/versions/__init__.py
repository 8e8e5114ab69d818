"""Tests of tests/broker on older versions of Kafka: `python -m tests.versions`."""
