#!/bin/bash
# Starts a Spark driver or executor on Kubernetes, depending on the first argument. Any other command is run as it is.
set -euo pipefail

# spark-submit leaves files in its working directory, and the root file system may be read-only.
enter_scratch() {
  cd "$(mktemp --directory)"
}

# A driver only plans, and then waits for minutes. Java's second compiler and parallel garbage collector would take two
# fifths of the CPU time of its start, without a benefit.
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
    # Options are added in the order of their numbers, because a later option overrides an earlier one.
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
    # The container ends with this script. So the script waits until handler processes, which notice the executor's end,
    # have run `teardown`.
    shift
    "$@" &
    java=$!
    trap 'kill -TERM "$java"' TERM
    code=0
    wait "$java" || code=$?
    # A signal interrupts `wait` although Java still runs.
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
