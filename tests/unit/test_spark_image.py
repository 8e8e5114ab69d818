"""The image of Spark jobs: its pins agree, its entrypoint meets Spark's contract, and trimming takes what it names."""

from __future__ import annotations

import re
import runpy
import subprocess
import threading
from pathlib import Path

import pytest

from e2e.local_cluster import versions
from fleet_consumer.backfill import cli

ROOT = Path(__file__).parents[2]
SPARK = ROOT / "consumer_image" / "spark"
ENTRYPOINT = SPARK / "entrypoint.sh"
DECOMMISSION = SPARK / "decom.sh"
EXECUTOR = {
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_DRIVER_URL": "spark://driver:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "job-exec-1",
}


def test_spark_of_the_packages_is_that_of_the_operator() -> None:
    assert re.findall(r"^pyspark==(.*)$", (ROOT / "requirements" / "spark.txt").read_text(), re.M) == [versions.SPARK]


def test_packages_of_workers_have_the_same_versions_in_the_spark_image() -> None:
    """One handler runs in both."""
    consumer, spark = (
        set(re.findall(r"^\S+==\S+", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE))
        for name in ("consumer", "spark")
    )
    assert consumer <= spark


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder for the PATH whose `tini` prints its working directory and what it was to run."""
    tini = tmp_path / "tini"
    tini.write_text('#!/bin/bash\npwd\nprintf "%s\\n" "$@"\nprintf "%s" "$SPARK_SUBMIT_OPTS" >"$TMPDIR/options"\n')
    tini.chmod(0o755)
    return tmp_path


def enter(programs: Path, *arguments: str, **settings: str) -> tuple[str, list[str]]:
    """The working directory and the words of the command that the entrypoint starts."""
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "TMPDIR": str(programs),
        "SPARK_HOME": "/opt/spark",
        "JAVA_HOME": "/opt/java",
        **settings,
    }
    done = subprocess.run([ENTRYPOINT, *arguments], env=environment, capture_output=True, text=True, check=True)
    folder, *words = done.stdout.splitlines()
    return folder, words


def test_driver_is_submitted_in_client_mode_from_a_folder_that_can_be_written(programs: Path) -> None:
    folder, words = enter(programs, "driver", "--class", "a b", SPARK_DRIVER_BIND_ADDRESS="10.0.0.8")
    assert words[:3] == ["-s", "--", "/opt/spark/bin/spark-submit"]
    assert "spark.driver.bindAddress=10.0.0.8" in words
    assert words[-4:] == ["--deploy-mode", "client", "--class", "a b"]
    assert Path(folder).parent == programs


@pytest.mark.parametrize(
    ("given", "options"),
    [({}, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"), ({"SPARK_SUBMIT_OPTS": "-Xint"}, "-Xint")],
)
def test_driver_s_java_is_made_for_a_short_life_unless_options_are_given(
    programs: Path, given: dict[str, str], options: str
) -> None:
    enter(programs, "driver", SPARK_DRIVER_BIND_ADDRESS="10.0.0.8", **given)
    assert (programs / "options").read_text() == options


def test_executor_s_options_keep_the_order_of_their_numbers(programs: Path) -> None:
    """By name, option 10 would come before option 2, and the later of two contradictory ones wins."""
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number}" for number in range(12)}
    _, words = enter(programs, "executor", **EXECUTOR, **options)
    assert words[5:17] == list(options.values())


def test_executor_gets_its_memory_and_its_place(programs: Path) -> None:
    folder, words = enter(
        programs, "executor", SPARK_CONF_DIR="/opt/spark/conf", SPARK_JAVA_OPT_0="-Da=b c", **EXECUTOR
    )
    assert words == [
        *("-s", "--", str(ENTRYPOINT), "supervised", "/opt/java/bin/java", "-Da=b c", "-Xms512m", "-Xmx512m"),
        *("-cp", f"/opt/spark/conf:/opt/spark/jars/*:{folder}"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://driver:7078", "--executor-id", "1", "--cores", "2", "--app-id", "spark-1"),
        *("--hostname", "10.0.0.9", "--resourceProfileId", "0", "--podName", "job-exec-1"),
    ]


def supervised(*program: str) -> subprocess.Popen[str]:
    words = [str(ENTRYPOINT), "supervised", *program]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_executor_ends_with_its_program_and_hears_signals() -> None:
    with supervised("bash", "-c", "exit 7") as ends:
        assert ends.wait(60) == 7
    with supervised("bash", "-c", "trap 'echo ended; exit 3' TERM; echo ready; while :; do sleep 0.05; done") as waits:
        assert waits.stdout is not None
        assert waits.stdout.readline() == "ready\n"
        waits.terminate()
        assert (waits.wait(60), waits.stdout.read()) == (3, "ended\n")


def test_executor_waits_for_the_handler_s_processes(tmp_path: Path) -> None:
    """They hear of its end, and run `teardown`."""
    done = tmp_path / "torn-down"
    script = f"bash -c 'sleep 1; touch {done}' fleet_consumer.backfill.process &"
    with supervised("bash", "-c", script) as ends:
        assert ends.wait(60) == 0
    assert done.exists()


def test_executor_that_is_to_leave_its_node_hears_so_and_is_waited_for(tmp_path: Path) -> None:
    """The word goes to the oldest process with exactly that name; others have Java in their command."""
    java = tmp_path / "java"
    java.write_text("#!/bin/bash\ntrap 'sleep 0.5; echo ended; exit' PWR\necho ready\nwhile :; do sleep 0.05; done\n")
    java.chmod(0o755)
    with subprocess.Popen([java, "Executor"], stdout=subprocess.PIPE, text=True) as executor:
        assert executor.stdout is not None
        assert executor.stdout.readline() == "ready\n"
        programs = tmp_path / "programs"
        programs.mkdir()
        (programs / "pgrep").write_text(f'#!/bin/bash\nprintf "%s " "$@" >{tmp_path}/asked\necho {executor.pid}\n')
        (programs / "pgrep").chmod(0o755)
        threading.Thread(target=executor.wait).start()  # its parent, which hears of its end
        subprocess.run([DECOMMISSION], env={"PATH": f"{programs}:/usr/bin:/bin"}, check=True, timeout=60)
        assert executor.poll() == 0
        assert executor.stdout.read() == "ended\n"
    assert (tmp_path / "asked").read_text() == "--oldest --exact java "


def test_executor_that_has_ended_by_itself_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "pgrep").symlink_to("/bin/false")
    subprocess.run([DECOMMISSION], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True, timeout=60)


def test_executor_without_a_setting_of_spark_does_not_start(programs: Path) -> None:
    incomplete = {name: value for name, value in EXECUTOR.items() if name != "SPARK_DRIVER_URL"}
    with pytest.raises(subprocess.CalledProcessError):
        enter(programs, "executor", **incomplete)


def test_any_other_command_is_run_where_it_was_started(programs: Path) -> None:
    folder, words = enter(programs, "fleet-consumer", "check", "--config", "a b")
    assert words == ["-s", "--", "fleet-consumer", "check", "--config", "a b"]
    assert folder == str(Path.cwd())


def test_trimming_fails_when_a_name_is_no_longer_found(tmp_path: Path) -> None:
    """A new Spark that names its jars otherwise would grow the image in silence."""
    (tmp_path / "pyspark" / "jars" / "connect-repl").mkdir(parents=True)
    (tmp_path / "pyspark" / "jars" / "rocksdbjni-9.jar").touch()
    done = subprocess.run(["bash", SPARK / "trim.sh", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "hive-" in done.stderr
    assert (tmp_path / "pyspark" / "jars" / "rocksdbjni-9.jar").exists()


def test_launcher_exits_with_the_driver_s_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "main", lambda: 42)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SPARK / "backfill.py"), run_name="__main__")
    assert ended.value.code == 42
