#!/bin/bash
# Run by Kubernetes before it ends an executor, such as on a node that is drained: Spark gives the executor no further task,
# and it ends after the one in hand. The pod's time to end bounds the wait.
set -euo pipefail

# A handler may have a Java of its own, which is younger.
java=$(pgrep --oldest --exact java) || exit 0
kill -PWR "$java"
while kill -0 "$java" 2> /dev/null; do
  sleep 0.1
done
