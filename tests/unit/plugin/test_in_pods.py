"""Commands that need a kubelet: `failed`, the preview of `redrive`, `logs`. A small HTTP server takes its place."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet_kubectl.api import CONFIG, open_api
from fleet_kubectl.cli import main
from fleet_operator.clients.kinds import JsonObject
from fleet_operator.planning import labels
from tests.unit.plugin import page
from tests.unit.plugin.fleets import group, pod
from tests.unit.plugin.kubelet_server import Server, serving

COUNTS = [
    {"reason": "exhausted", "class": "ValueError", "count": 2},
    {"reason": "fatal", "class": "KeyError", "count": 1},
]
Types = Callable[..., int]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[Server, Types]]:
    """A server with the fleet `orders` of two workers and a retry worker, and a function that runs a command."""
    with serving(tmp_path) as (server, config):
        server.objects["consumergroups"] = [group("orders", spec={"retry": {"policyRef": {"name": "standard"}}})]
        server.objects["pods"] = [
            pod("orders-fleet-0"),
            pod("orders-fleet-1"),
            pod("orders-fleet-retry-0", labels.RETRY),
        ]
        server.outputs = {
            "count": ("".join(f"{json.dumps(row)}\n" for row in COUNTS), "3 of about 3 records read\n", 0),
            "list": ("0:0  2027-01-01T00:00:00Z  orders:3:17  exhausted  ValueError  bad\n", "", 0),
            "show": ("", "RecordMissing: 9:9 does not exist\n", 21),
        }
        yield server, lambda *words: main([*words, "--kubeconfig", str(config)])


def test_failed_records_are_read_in_a_worker_with_the_filters(
    fleet: tuple[Server, Types], capsys: pytest.CaptureFixture[str]
) -> None:
    server, types = fleet
    assert (
        types("failed", "list", "orders", "--reason", "exhausted", "--error-class", "ValueError", "--limit", "5") == 0
    )
    assert "orders:3:17" in capsys.readouterr().out
    words = "list --reason exhausted --error-class ValueError --limit 5 --config /etc/consumer-fleet/worker.json"
    assert server.commands == [["fleet-consumer", "failed", *words.split()]]


def test_exit_code_and_error_of_the_command_are_passed_on(
    fleet: tuple[Server, Types], capsys: pytest.CaptureFixture[str]
) -> None:
    _, types = fleet
    assert types("failed", "show", "orders", "9:9") == 21
    assert capsys.readouterr().err == "RecordMissing: 9:9 does not exist\n"


def test_redrive_shows_what_matches_and_asks_before_it_creates(
    fleet: tuple[Server, Types], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, types = fleet
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    asked: list[str] = []

    def declines(question: str) -> str:
        asked.append(question)
        return "n"

    monkeypatch.setattr("builtins.input", declines)
    assert types("redrive", "orders", "--reason", "exhausted", "--name", "fixed") == 1
    shown = capsys.readouterr().out
    assert "        2  exhausted  ValueError\n" in shown
    assert "        3  in all\n" in shown
    assert "orders:3:17" in shown
    assert "Redrive fixed puts them back for this group only, without a rate limit." in shown
    assert asked == ["Put them back? [y/N] "]
    assert shown.endswith("Nothing was changed.\n")


def test_redrive_moves_only_what_had_failed_at_its_preview(
    fleet: tuple[Server, Types], capsys: pytest.CaptureFixture[str]
) -> None:
    server, types = fleet
    server.ends["redrives"] = {"phase": "Succeeded", "moved": 2}
    assert types("redrive", "orders", "--reason", "exhausted", "--yes") == 0
    (made,) = server.objects["redrives"]
    until = made["spec"]["filter"]["toTime"]
    assert f"Failed records of ConsumerGroup shop/orders until {until} that match:" in capsys.readouterr().out
    previews = [command for command in server.commands if command[2] in ("count", "list")]
    assert len(previews) == 2
    assert all(command[command.index("--to") + 1] == until for command in previews)
    assert types("redrive", "orders", "--to", "2027-01-15T08:00:00Z", "--yes") == 0
    assert server.objects["redrives"][-1]["spec"]["filter"] == {"toTime": "2027-01-15T08:00:00Z"}
    server.outputs["show"] = (json.dumps({"partition": 0, "offset": 0}), "", 0)
    assert types("redrive", "orders", "--record", "0:0", "--yes") == 0
    assert "filter" not in server.objects["redrives"][-1]["spec"]


@pytest.mark.parametrize("words", [("--to", "latest"), ("--to", "2h", "--topic", "orders")])
def test_reset_sets_the_offsets_that_it_has_shown(
    fleet: tuple[Server, Types], capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    server, types = fleet
    resolved = [{"topic": "orders", "partition": number, "offset": 100 + number} for number in range(2)]
    server.ends["offsetresets"] = {"phase": "Succeeded", "partitions": 2, "resolved": resolved}
    assert types("reset", "orders", *words, "--name", "again", "--yes") == 0
    preview, made = server.objects["offsetresets"]
    assert preview["spec"]["dryRun"]
    assert made["metadata"]["name"] == "again"
    assert made["spec"].pop("notAfter")
    assert made["spec"] == {"groupRef": {"name": "orders"}, "to": "Offsets", "offsets": resolved}
    assert "stops the main workers, sets these offsets" in capsys.readouterr().out


@pytest.mark.parametrize(
    "status", [{}, {"partitions": 2, "resolved": [{"topic": "orders", "partition": 0, "offset": 7}]}]
)
def test_reset_that_cannot_name_the_offsets_says_so(
    fleet: tuple[Server, Types], capsys: pytest.CaptureFixture[str], status: JsonObject
) -> None:
    server, types = fleet
    server.ends["offsetresets"] = {"phase": "Succeeded", **status}
    assert types("reset", "orders", "--to", "latest", "--yes") == 0
    assert server.objects["offsetresets"][1]["spec"]["to"] == "Latest"
    shown = capsys.readouterr().out
    assert "resolves `--to latest` again" in shown
    assert "sets these offsets" not in shown


@pytest.mark.parametrize("words", [("redrive", "orders"), ("reset", "orders", "--to", "latest")])
def test_end_of_input_at_the_question_is_an_error(
    fleet: tuple[Server, Types],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    server, types = fleet
    server.ends["offsetresets"] = {"phase": "Succeeded"}
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert types(*words) == 3
    assert "NoAnswer: standard input ended" in capsys.readouterr().err
    assert all(body["spec"].get("dryRun") for kind in server.ends for body in server.objects.get(kind, ()))


@pytest.mark.parametrize("output", ["[1]\n", "oops\n", '{"count": 1}\n', pytest.param("[" * 100_000, id="deep")])
def test_preview_that_is_not_of_a_worker_gives_way_to_a_dry_run(
    fleet: tuple[Server, Types], capsys: pytest.CaptureFixture[str], output: str
) -> None:
    server, types = fleet
    server.outputs["count"] = (output, "", 0)
    server.ends["redrives"] = {"phase": "Succeeded", "selected": 2}
    assert types("redrive", "orders", "--yes") == 0
    printed = capsys.readouterr()
    assert "CommandFailed: pod shop/orders-fleet-0: " in printed.err
    assert "A dry run counts the records instead:" in printed.out


def test_output_of_a_pod_sends_no_control_sequences_to_the_terminal(
    fleet: tuple[Server, Types], capsys: pytest.CaptureFixture[str]
) -> None:
    server, types = fleet
    bad = "a\x1b]0;title\x07\tb\x9b2J\n"
    server.outputs["list"] = server.outputs["show"] = (bad, bad, 0)
    server.outputs["count"] = (server.outputs["count"][0], bad, 0)
    server.ends["redrives"] = {"phase": "Succeeded"}
    for words in (("failed", "list"), ("failed", "show", "0:0"), ("redrive", "--yes")):
        command, *rest = words
        part = [rest.pop(0)] if command == "failed" else []
        assert types(command, *part, "orders", *rest) == 0
        printed = capsys.readouterr()
        for text in (printed.out, printed.err):
            assert r"a\u001b]0;title\u0007" in text
            assert text.replace("\n", "").replace("\t", "").isprintable()


def test_command_that_does_not_end_is_given_up(
    fleet: tuple[Server, Types], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, types = fleet
    del server.outputs["list"]
    monkeypatch.setattr("fleet_kubectl.api.EXEC_S", 0.1)
    assert types("failed", "list", "orders") == 3
    assert "CommandFailed: pod shop/orders-fleet-0: fleet-consumer failed list" in capsys.readouterr().err


def test_namespace_in_a_pod_is_that_of_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = tmp_path / "namespace"
    mounted.write_text("shop\n")
    monkeypatch.setattr("fleet_kubectl.api.NAMESPACE_FILE", mounted)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    monkeypatch.setattr("fleet_kubectl.api.CONFIG.load_incluster_config", lambda: None)
    monkeypatch.setattr("fleet_kubectl.api.CONFIG.new_client_from_config", _no_config)
    assert open_api(None, None, None).namespace == "shop"
    assert open_api(None, None, "other").namespace == "other"
    mounted.unlink()
    assert open_api(None, None, None).namespace == "default"


def _no_config(**_: object) -> None:
    raise CONFIG.ConfigException("no configuration")


def test_status_fails_exactly_if_a_name_is_missing_or_not_ready(
    fleet: tuple[Server, Types], capsys: pytest.CaptureFixture[str]
) -> None:
    server, types = fleet
    assert types("status", "orders", "orders") == 0
    server.objects["consumergroups"] = [group("orders", "shop"), group("orders", "other"), group("flights", "shop")]
    assert types("status", "-A", "orders", "orders") == 0
    assert types("status", "-A", "orders", "absent") == 1
    assert "ConsumerGroup absent does not exist" in capsys.readouterr().err
    assert types("status", "-A", "orders", "flights") == 0


def bundled(path: Path) -> dict[str, str]:
    """The files of a bundle by name."""
    with tarfile.open(path) as bundle:
        return {
            entry.name: bundle.extractfile(entry).read().decode()  # type: ignore[union-attr]
            for entry in bundle.getmembers()
        }


def test_bundle_has_logs_of_containers_that_initialize_a_pod(fleet: tuple[Server, Types], tmp_path: Path) -> None:
    server, types = fleet
    failed = pod("orders-fleet-0")
    failed["spec"]["initContainers"] = [{"name": "fetch"}]
    failed["status"]["initContainerStatuses"] = [{"name": "fetch", "restartCount": 2}]
    long = "x" * 60 + " password: two words hunter2-x9"
    failed["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "Broken", "message": long}}
    server.objects["pods"] = [failed]
    server.logs = {"orders-fleet-0": ["2027-01-01T00:00:01Z no source"]}
    path = tmp_path / "bundle.tar.gz"
    assert types("support-bundle", "orders", "--output", str(path)) == 0
    files = bundled(path)
    for name in ("fetch", "fetch-previous", "worker"):
        assert "no source" in files[f"fleet/logs/shop/orders-fleet-0/{name}.log"]
    assert "hunter2-x9" not in "".join(files.values())
    assert "Broken" in files["fleet/explain.txt"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("made", ["file", "link", "absent folder", "folder"])
def test_bundle_that_cannot_be_written_is_an_error_before_anything_is_read(
    fleet: tuple[Server, Types], tmp_path: Path, capsys: pytest.CaptureFixture[str], made: str
) -> None:
    server, types = fleet
    path, other = tmp_path / "bundle.tar.gz", tmp_path / "other"
    other.write_text("kept")
    if made == "file":
        path.write_text("kept")
    elif made == "link":
        path.symlink_to(other)
    elif made == "folder":
        path.mkdir()
    else:
        path = tmp_path / "absent" / "bundle.tar.gz"
    assert types("support-bundle", "orders", "--output", str(path)) == 3
    assert f"FileNotWritten: {path}" in capsys.readouterr().err
    assert server.requests == 1
    assert other.read_text() == "kept"
    assert made != "file" or path.read_text() == "kept"


def test_interrupted_bundle_leaves_no_file(
    fleet: tuple[Server, Types], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    _, types = fleet
    monkeypatch.setattr("fleet_kubectl.bundle.collect", interrupted)
    assert types("support-bundle", "orders", "--output", str(tmp_path / "bundle.tar.gz")) == 130
    assert not (tmp_path / "bundle.tar.gz").exists()


def test_logs_of_all_workers_are_merged(fleet: tuple[Server, Types], capsys: pytest.CaptureFixture[str]) -> None:
    server, types = fleet
    said = json.dumps({"level": "warning", "message": "record failed", "topic": "orders", "offset": 17})
    server.logs = {
        "orders-fleet-0": ["2027-01-01T00:00:02Z starting", f"2027-01-01T00:00:04Z {said}"],
        "orders-fleet-1": ["2027-01-01T00:00:03Z starting"],
        "orders-fleet-retry-0": ["2027-01-01T00:00:01Z waiting"],
    }
    assert types("logs", "orders") == 0
    assert capsys.readouterr().out.splitlines() == [
        "00:00:01.000 orders-fleet-retry-0 waiting",
        "00:00:02.000 orders-fleet-0       starting",
        "00:00:03.000 orders-fleet-1       starting",
        "00:00:04.000 orders-fleet-0       WARNING record failed  topic=orders offset=17",
    ]
    assert types("logs", "orders", "--part", "main", "--member", "1") == 0
    assert capsys.readouterr().out == "00:00:03.000 orders-fleet-1 starting\n"


def test_status_needs_a_request_for_each_page(fleet: tuple[Server, Types], capsys: pytest.CaptureFixture[str]) -> None:
    server, types = fleet
    server.objects["consumergroups"] = [group(f"orders-{number}") for number in range(1200)]
    assert types("status", "-A") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1201
    assert server.requests == 3


def test_commands_of_the_page_run(fleet: tuple[Server, Types], capsys: pytest.CaptureFixture[str]) -> None:
    server, types = fleet
    server.outputs["show"] = ("record    0:0\n", "", 0)
    server.logs = {name: ["2027-01-01T00:00:01Z starting"] for name in ("orders-fleet-0", "orders-fleet-1")}
    server.logs["orders-fleet-retry-0"] = ["2027-01-01T00:00:01Z waiting"]
    found = page.commands(in_pods=True)
    assert len(found) >= 6
    for words in found:
        assert types(*words) == 0, (words, capsys.readouterr())
        assert capsys.readouterr().out
