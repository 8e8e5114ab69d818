#!/bin/bash
# Removes parts of the packages folder (the argument) that batch jobs on Kafka, files and data frames never load: streaming
# state, Hive, machine learning, Spark Connect, graphs, YARN, the shell's compiler, ORC; examples, tests and headers.
set -euo pipefail
cd "$1"

# A pattern without a match fails, because another version may have other file names. The list must then be revised.
shopt -s failglob
( cd pyspark/jars
  rm -r connect-repl \
    rocksdbjni-* \
    hive-* spark-hive* datanucleus-* derby* libthrift-* libfb303-* jdo-api-* javax.jdo-* HikariCP-* ST4-* antlr-runtime-* \
    spark-mllib* breeze* JTransforms-* JLargeArrays-* arpack* lapack-* blas-* spire* algebra_* cats-kernel_* \
    spark-connect_* spark-graphx_* spark-streaming_* spark-yarn_* spark-repl_* \
    jline-* scala-compiler-* \
    orc-* )

rm -r pyspark/examples pyspark/data
rm -r pandas/tests numpy/*/tests pyarrow/tests pyarrow/include
# pyarrow's libarrow_flight and libarrow_substrait stay: it does not load without them.
