"""Slices on Spark: one session for an attempt, one job for each slice. Imports pyspark where it is used."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from tempfile import NamedTemporaryFile
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from fleet_consumer.backfill.comparing import joined_function
from fleet_consumer.backfill.errors import BackfillFailed, Superseded, meaning
from fleet_consumer.backfill.rows import DIFFERENCE_COLUMNS, SELECTED, schema_of
from fleet_consumer.backfill.slices import TaskRange, TaskReport
from fleet_consumer.backfill.task import columns_of, task_function
from fleet_consumer.backfill.work import Work
from fleet_consumer.contract.backfill_config import BackfillConfig
from fleet_consumer.worker.config.settings import ISOLATION_LEVELS
from fleet_consumer.worker.logs import fields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG = logging.getLogger("fleet_consumer.backfill")

BATCH_BYTES: Final = 32 << 20
"""Memory for the records of one Arrow batch, were they all as large as the largest of the last slice."""
BATCH_FIRST: Final = 100
BATCH_MAX: Final = 5_000
ALIVE_S: Final = 5.0
"""The interval at which progress within a job is told."""
DIFFERENCES: Final = "differences"
FOLDERS: Final = {"Live": "live", "Candidate": "candidate", "Both": DIFFERENCES}
"""Folders of a comparison below the Backfill's own."""

SETTINGS: Final = {
    # A second copy of a slow task would call the handler twice.
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionOverwriteMode": "STATIC",
    "spark.python.worker.reuse": "true",
    # It draws on standard error, between the lines of the log.
    "spark.ui.showConsoleProgress": "false",
}
"""Settings that a Backfill depends on, whatever `sparkConf` says."""
SHUFFLE: Final = ("spark.sql.shuffle.partitions", "4")
"""Default of the one join; Spark's own of 200 tasks is for large clusters."""


class SparkEngine:
    """One session. Raises BackfillFailed for whatever Spark reports."""

    def __init__(
        self, config: BackfillConfig, master: str | None, alive: Callable[[int], None] = lambda sign: None
    ) -> None:
        """Start the session. `alive` is told a new number at each sign of progress of a job."""
        from pyspark import AccumulatorParam
        from pyspark.sql import SparkSession

        class Reports(AccumulatorParam):  # type: ignore[misc]  # pyspark is not installed where types are checked
            def zero(self, value: dict[Any, TaskReport]) -> dict[Any, TaskReport]:
                return {}

            def addInPlace(self, value1: dict[Any, Any], value2: dict[Any, Any]) -> dict[Any, Any]:  # noqa: N802
                value1.update(value2)
                return value1

        self._config = config
        self._alive = alive
        builder = SparkSession.builder
        if master is not None:
            builder = builder.master(master)
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        self._spark: SparkSession = self._asked(builder.getOrCreate)
        given = self._spark.sparkContext.getConf()
        if not given.contains(SHUFFLE[0]):
            self._spark.conf.set(*SHUFFLE)
        if not given.contains("spark.log.level"):
            # Spark logs each task, in lines of its own form.
            self._spark.sparkContext.setLogLevel("WARN")
        self._reports = self._spark.sparkContext.accumulator({}, Reports())
        self._rows = BATCH_FIRST

    @property
    def cores(self) -> int:
        """The number of tasks that run at once, on the executors that are there: all may not have found room."""
        context = self._spark.sparkContext
        local = re.fullmatch(r"local\[(\d+)(?:,.*)?\]", context.master)
        if local:
            return int(local[1])
        cores = int(context.getConf().get("spark.executor.cores", "1") or 1)
        # The driver is one of those that are registered.
        return cores * max(1, int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1)

    def play(
        self, slice_number: int, planned: Sequence[TaskRange], work: Work, connection: Mapping[str, str]
    ) -> dict[int, TaskReport]:
        """Run one slice to its end; the reports of its tasks by Spark's numbers. `connection`: Spark's options."""
        self._spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(self._rows))
        self._reports.value = {}
        columns = columns_of(self._config)
        function = task_function(work, slice_number, self._reports)
        path = self._path(slice_number)

        def run() -> None:
            rows = self._read(planned, connection).mapInArrow(function, schema_of(columns))
            if path is None:
                rows.write.format("noop").mode("append").save()
            else:
                rows.write.mode("overwrite").parquet(path)

        self._watched(run, "numCompleteTasks")
        found = {task: report for (number, task), report in self._reports.value.items() if number == slice_number}
        self._adapt(found)
        return found

    def discard_from(self, number: int) -> None:
        """Remove the files of this slice and of those after it, which an attempt may have left behind."""
        base = self._path(None)
        if base is not None:
            self._asked(lambda: self._delete(base, lambda name: _number(name) >= number))

    def join_passes(self) -> list[TaskReport]:
        """Compare the answers of both passes and write the differences; the reports of the tasks."""
        assert self._config.compare is not None, "this Backfill compares"
        ignored = self._config.compare.ignore_fields
        root = self._root()
        self._reports.value = {}

        def run() -> None:
            sides = [self._spark.read.parquet(f"{root}/{folder}") for folder in ("live", "candidate")]
            places = ("topic", "partition", "offset", "timestamp", "key")
            live, candidate = (
                side.selectExpr(*places, f"answer AS {name}")
                for side, name in zip(sides, ("live", "candidate"), strict=True)
            )
            both = live.join(candidate.drop("topic", "timestamp", "key"), ["partition", "offset"], "full_outer")
            function = joined_function(self._config.topic, ignored, self._reports)
            rows = both.mapInArrow(function, schema_of(DIFFERENCE_COLUMNS))
            rows.write.mode("overwrite").parquet(f"{root}/{DIFFERENCES}")

        # Few tasks, of which each may take long: what they have read and written is progress, too.
        self._watched(run, "numCompleteTasks", "inputRecords", "shuffleReadRecords", "outputRecords")
        return list(self._reports.value.values())

    def close(self) -> None:
        self._spark.stop()

    def _read(self, planned: Sequence[TaskRange], secrets: Mapping[str, str]) -> DataFrame:
        """The records of a slice; a layer holds at most one range of each partition, which is one task."""
        layers = [
            {part.partition: part for part in planned if part.layer == layer}
            for layer in sorted({part.layer for part in planned})
        ]
        connection = self._java_map(secrets)
        return reduce(lambda one, other: one.union(other), (self._layer(layer, connection) for layer in layers))

    def _java_map(self, secrets: Mapping[str, str]) -> Any:
        """The map in the JVM. It goes there by a file of this user alone: the socket to the JVM is not encrypted."""
        jvm = self._spark.sparkContext._jvm
        with NamedTemporaryFile("w", encoding="utf-8") as file:
            json.dump(dict(secrets), file)
            file.flush()
            kind = jvm.java.lang.Class.forName("java.util.HashMap")
            return jvm.com.fasterxml.jackson.databind.ObjectMapper().readValue(jvm.java.io.File(file.name), kind)

    def _layer(self, ranges: Mapping[int, TaskRange], connection: Any) -> DataFrame:
        topic, consumer = self._config.topic, self._config.worker.consumer
        options = {
            "assign": json.dumps({topic: sorted(ranges)}),
            "startingOffsets": json.dumps({topic: {str(part): each.first for part, each in ranges.items()}}),
            "endingOffsets": json.dumps({topic: {str(part): each.end for part, each in ranges.items()}}),
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "groupIdPrefix": f"fleet-backfill-{self._config.id}",
            "kafka.isolation.level": ISOLATION_LEVELS[consumer.isolation_level],
        }
        reader = self._spark.read.format("kafka").options(**options)
        reader._jreader.options(connection)
        return reader.load().selectExpr(*SELECTED)

    def _adapt(self, reports: Mapping[int, TaskReport]) -> None:
        """Batches of the next slice that would fit if all records were as large as the largest of this one."""
        largest = max((report.largest for report in reports.values()), default=0)
        fit = BATCH_BYTES // max(1, largest)
        self._rows = max(1, min(BATCH_MAX, fit, 10 * self._rows))

    def _root(self) -> str:
        parquet = self._config.sink.parquet
        assert parquet is not None, "this Backfill writes files"
        base = parquet if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", parquet) else f"file://{parquet}"
        return f"{base.rstrip('/')}/{self._config.id}"

    def _path(self, number: int | None) -> str | None:
        """The folder of a slice, or with None that of all slices; None if nothing is written."""
        if self._config.sink.parquet is None:
            return None
        compare = self._config.compare
        folder = "" if compare is None else f"/{FOLDERS[compare.handlers]}"
        return f"{self._root()}{folder}" + ("" if number is None else f"/slice={number:06d}")

    def _delete(self, base: str, chosen: Callable[[str], bool]) -> None:
        context = self._spark.sparkContext
        jvm, conf = context._jvm, context._jsc.hadoopConfiguration()
        folder = jvm.org.apache.hadoop.fs.Path(base)
        files = folder.getFileSystem(conf)
        if not files.exists(folder):
            return
        for status in files.listStatus(folder):
            path = status.getPath()
            if chosen(path.getName()):
                files.delete(path, True)
                LOG.info("files of an unfinished slice removed", extra=fields(path=path.toString()))

    def _watched(self, run: Callable[[], None], *counters: str) -> None:
        """Run a job, and tell meanwhile of its progress: of each change of its stages' counters.

        Raises Superseded as soon as a newer attempt has the ledger; the job is cancelled then.
        """
        end, superseded = Event(), list[Superseded]()

        def tell() -> None:
            known, signs = [0] * len(counters), 0
            while not end.wait(ALIVE_S):
                try:
                    seen = [self._count(counter) for counter in counters]
                    if seen != known:
                        signs += 1
                        self._alive(signs)
                    known = seen
                except Superseded as error:
                    superseded.append(error)
                    self._spark.sparkContext.cancelAllJobs()
                    return
                except Exception as error:
                    LOG.warning("the progress of a job is not in the ledger", extra=fields(error=str(error)))

        teller = Thread(target=tell, name="alive", daemon=True)
        teller.start()
        try:
            self._asked(run)
        finally:
            end.set()
            teller.join()
            if superseded:
                raise superseded[0]

    def _count(self, counter: str) -> int:
        """The sum of a counter of all stages that run."""
        stages = self._spark.sparkContext._jsc.sc().statusStore().activeStages()
        return sum(int(getattr(stages.apply(number), counter)()) for number in range(stages.size()))

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except BackfillFailed:
            raise
        except Exception as error:
            # py4j's and Spark's own errors; their texts hold the causes.
            LOG.debug("Spark failed", exc_info=True)
            raise meaning(str(error), self._config.topic) from error


def _number(name: str) -> int:
    """The number of a slice's folder, -1 for other names."""
    found = re.fullmatch(r"slice=(\d+)", name)
    return int(found[1]) if found else -1
