#!/bin/bash
# Starts what Spark on Kubernetes asks for by the first argument: a driver, an executor, or any other command.
set -euo pipefail

# spark-submit leaves files in its working directory, and the root file system may be read-only.
enter_scratch() {
  cd "$(mktemp --directory)"
}

# A driver plans and waits, for minutes: what Java's second compiler and parallel collector cost is two fifths of the
# processor time of its start, and they gain it nothing.
BRIEF="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

case "${1:-}" in
  driver)
    shift
    enter_scratch
    export SPARK_SUBMIT_OPTS="${SPARK_SUBMIT_OPTS-$BRIEF}" SPARK_LAUNCHER_OPTS="${SPARK_LAUNCHER_OPTS-$BRIEF}"
    exec tini -s -- "$SPARK_HOME/bin/spark-submit" \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
      --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
      --deploy-mode client "$@"
    ;;
  executor)
    enter_scratch
    # Numbered from 0; by number, not by name: a later option replaces an earlier one.
    options=()
    for ((number = 0; ; number++)); do
      name="SPARK_JAVA_OPT_$number"
      [[ -v "$name" ]] || break
      options+=("${!name}")
    done
    exec tini -s -- "$0" supervised "$JAVA_HOME/bin/java" "${options[@]}" \
      "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*${SPARK_CLASSPATH:+:$SPARK_CLASSPATH}:$PWD" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" \
      --executor-id "$SPARK_EXECUTOR_ID" \
      --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" \
      --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
      --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  supervised)
    # The container ends with this script: handlers' processes hear the end of the executor, and get time for `teardown`.
    shift
    "$@" &
    java=$!
    trap 'kill -TERM "$java"' TERM
    code=0
    wait "$java" || code=$?
    # A signal ends the wait before the program has ended.
    while kill -0 "$java" 2> /dev/null; do
      code=0
      wait "$java" || code=$?
    done
    for ((tenths = 0; tenths < 120; tenths++)); do
      pgrep --full fleet_consumer.backfill.process > /dev/null || break
      sleep 0.1
    done
    exit "$code"
    ;;
  *)
    exec tini -s -- "$@"
    ;;
esac
