#!/bin/bash
# The preStop hook of an executor, for example when its node is drained. Spark assigns no more tasks to the executor,
# which ends after its current task. The pod's termination grace period limits the wait.
set -euo pipefail

# The executor is the oldest Java process; a handler may have started others.
java=$(pgrep --oldest --exact java) || exit 0
kill -PWR "$java"
while kill -0 "$java" 2> /dev/null; do
  sleep 0.1
done
