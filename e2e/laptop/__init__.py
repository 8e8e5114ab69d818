"""`make try`: Kafka, two workers, retries and a redrive on this machine, without Kubernetes."""
