"""Runs slices on Spark: one session per attempt, one job per slice. Imports pyspark only when it is used."""

import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from fleet_consumer.backfill.errors import BackfillFailed, Superseded, meaning
from fleet_consumer.backfill.rows import ANSWER_COLUMNS, columns_of, schema_of
from fleet_consumer.backfill.slices import Task, TaskReport
from fleet_consumer.backfill.tables import STAGING, TABLES, Table, folder_of_slice, number_of_slice, table_settings
from fleet_consumer.backfill.task import task_function
from fleet_consumer.backfill.work import Work
from fleet_consumer.contract.backfill_config import BOTH, CANDIDATE, LIVE, BackfillConfig
from fleet_consumer.worker.logs import fields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOG = logging.getLogger("fleet_consumer.backfill")

BATCH_ROWS: Final = 1_000
"""Maximum number of rows in an Arrow batch of stored answers."""
ALIVE_S: Final = 5.0
"""Interval at which a job's progress is checked and reported."""
FOLDERS: Final = {LIVE: "live", CANDIDATE: "differences", BOTH: "differences"}
"""Subfolders of the Backfill's folder for the passes of a comparison."""

SETTINGS: Final = {
    # A speculative copy of a slow task would call the handler twice.
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionOverwriteMode": "STATIC",
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    # In the second pass of a comparison, a separate task reads each file from the first pass.
    "spark.sql.files.openCostInBytes": str(1 << 30),
    # The progress bar would mix with the log on standard error.
    "spark.ui.showConsoleProgress": "false",
}
"""Spark settings that a Backfill requires; they override `sparkConf`."""


class SparkEngine:
    """One Spark session. Methods raise BackfillFailed for all Spark errors."""

    def __init__(self, config: BackfillConfig, master: str | None, alive: Callable[[int], None]) -> None:
        """Start the session. During a job, `alive` is called with the number of completed tasks when it changes."""
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
        self._file_system: Any = None
        settings = {**SETTINGS, **self._asked(self._own_settings)}
        if master is not None:
            settings["spark.master"] = master
        self._spark: SparkSession = self._asked(SparkSession.builder.config(map=settings).getOrCreate)
        if not self._spark.sparkContext.getConf().contains("spark.log.level"):
            # At its default log level, Spark logs every task, in Spark's own format.
            self._spark.sparkContext.setLogLevel("WARN")
        self._reports = self._spark.sparkContext.accumulator({}, Reports())
        self._table: Table | None = None
        if config.sink.table is not None:
            self._table = TABLES[config.sink.table.format](self._spark, config, self._root())
            self._asked(self._table.prepare)

    @property
    def cores(self) -> int:
        """Number of tasks that the registered executors can run concurrently. With dynamic allocation, returns twice
        this number: Spark requests more executors only while tasks wait."""
        context = self._spark.sparkContext
        local = re.fullmatch(r"local\[(\d+)(?:,.*)?\]", context.master)
        if local:
            return int(local[1])
        conf = context.getConf()
        cores = int(conf.get("spark.executor.cores", "1") or 1)
        if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
            cores *= 2
        # The driver is also registered, so 1 is subtracted.
        return cores * max(1, int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1)

    def play(self, slice_number: int, planned: Sequence[Task], work: Work) -> dict[int, TaskReport]:
        """Run one slice. Returns the reports of its tasks, keyed by task number."""
        function = task_function(work, slice_number, tuple(planned), self._reports)
        # One row for each task, each in its own Spark partition.
        tasks = self._spark.range(0, len(planned), 1, len(planned))
        self._write(tasks.mapInArrow(function, schema_of(columns_of(self._config))), slice_number)
        return self._taken(slice_number)

    def play_second_pass(self, slice_number: int, work: Work) -> dict[int, TaskReport]:
        """Let the candidate handle one slice of the first pass, and compare the answers. Returns reports by task
        number."""
        function = task_function(work, slice_number, None, self._reports)
        path = self._slice(slice_number, LIVE)
        answers = self._asked(lambda: self._spark.read.schema(schema_of(ANSWER_COLUMNS)).parquet(path))
        self._write(answers.mapInArrow(function, schema_of(columns_of(self._config))), slice_number)
        found = self._taken(slice_number)
        if len(found) != (tasks := answers.rdd.getNumPartitions()):
            seen = f"{len(found)} of {tasks} tasks of the slice reported"
            raise BackfillFailed("SliceIncomplete", f"{seen}; the slice is repeated", final=False)
        return found

    def _write(self, rows: "DataFrame", slice_number: int) -> None:
        def run() -> None:
            if self._config.sink.folder is None:
                rows.write.format("noop").mode("append").save()
            else:
                rows.write.mode("overwrite").parquet(self._slice(slice_number))

        self._watched(run)

    def _taken(self, slice_number: int) -> dict[int, TaskReport]:
        found = {task: report for (number, task), report in self._reports.value.items() if number == slice_number}
        self._reports.value = {}
        return found

    def publish(self, first: int, end: int) -> None:
        """Add the rows of the slices from `first` to `end` (exclusive) to the table, unless it already has them."""
        table, paths = self._table, [self._slice(number) for number in range(first, end)]
        assert table is not None, "the sink is a table"

        def run() -> None:
            rows = self._spark.read.schema(schema_of(columns_of(self._config))).parquet(*paths)
            table.publish(table.divided(rows, sum(map(self._size, paths))), end, first=first == 0)

        self._watched(run)

    def discard(self, first: int, end: int | None = None) -> None:
        """Remove the files of the slices from `first` to `end` (exclusive; None: all later slices). The files are
        unneeded because their rows are in the table, or because the ledger does not list them."""
        if self._config.sink.folder is not None:
            chosen = range(first, sys.maxsize if end is None else end)
            self._asked(lambda: self._delete(chosen))

    def close(self) -> None:
        self._spark.stop()

    def _own_settings(self) -> Mapping[str, str]:
        from pyspark import SparkConf

        if self._config.sink.table is None and not self._config.event_log:
            return {}
        own = dict(table_settings(self._config, self._root(), SparkConf().contains))
        if self._config.event_log:
            own |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": self._events()}
        return own

    def _root(self) -> str:
        folder = self._config.sink.folder
        assert folder is not None, "this Backfill writes files"
        return (folder if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", folder) else f"file://{folder}").rstrip("/")

    def _slices(self, handlers: str | None = None) -> str:
        """Return the folder of all slices. In a comparison, `handlers` selects the pass (default: this pass)."""
        compare = self._config.compare
        above = "" if self._config.sink.table is None else f"/{STAGING}"
        below = "" if compare is None else f"/{FOLDERS[handlers or compare.handlers]}"
        return f"{self._root()}{above}/{self._config.id}{below}"

    def _slice(self, number: int, handlers: str | None = None) -> str:
        return f"{self._slices(handlers)}/{folder_of_slice(number)}"

    def _events(self) -> str:
        """Create and return the folder of the event log, which must exist before the Spark session starts."""
        path = f"{self._root()}/{STAGING}/events"
        files, folder = self._files(path)
        files.mkdirs(folder)
        return path

    def _size(self, path: str) -> int:
        files, folder = self._files(path)
        return int(files.getContentSummary(folder).getLength())

    def _files(self, path: str) -> tuple[Any, Any]:
        """Return Hadoop's file system for a path below the root, and the path as Hadoop's Path object. May be called
        before the session starts. The file system uses the settings of spark-submit, which are read once."""
        from pyspark import SparkContext

        SparkContext._ensure_initialized()
        jvm: Any = SparkContext._jvm
        folder = jvm.org.apache.hadoop.fs.Path(path)
        if self._file_system is None:
            conf = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(jvm.org.apache.spark.SparkConf())
            self._file_system = folder.getFileSystem(conf)
        return self._file_system, folder

    def _delete(self, chosen: range) -> None:
        files, folder = self._files(self._slices())
        if not files.exists(folder):
            return
        for status in files.listStatus(folder):
            path = status.getPath()
            if number_of_slice(path.getName()) in chosen:
                files.delete(path, True)
                LOG.info("files of a slice removed", extra=fields(path=path.toString()))

    def _watched(self, run: Callable[[], None]) -> None:
        """Run a job, and report progress. If a newer attempt owns the ledger, cancels the job and raises Superseded."""
        end, superseded = Event(), list[Superseded]()

        def tell() -> None:
            known = 0
            while not end.wait(ALIVE_S):
                try:
                    done = self._tasks_done()
                    if done != known:
                        self._alive(done)
                    known = done
                except Superseded as error:
                    superseded.append(error)
                    self._spark.sparkContext.cancelAllJobs()
                    return
                except Exception as error:
                    LOG.warning("the progress of a job could not be stored", extra=fields(error=str(error)))

        teller = Thread(target=tell, name="alive", daemon=True)
        teller.start()
        try:
            self._asked(run)
        finally:
            end.set()
            teller.join()
            if superseded:
                raise superseded[0]

    def _tasks_done(self) -> int:
        stages = self._spark.sparkContext._jsc.sc().statusStore().activeStages()
        return sum(int(stages.apply(number).numCompleteTasks()) for number in range(stages.size()))

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except BackfillFailed:
            raise
        except Exception as error:
            # An error from py4j or Spark; its message contains the cause.
            LOG.debug("Spark failed", exc_info=True)
            raise meaning(str(error)) from error
