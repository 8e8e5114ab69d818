"""The library as users install it: a wheel in a fresh virtual environment, without extras and without the checkout.

Packages come from the index that pip is configured for, in the versions of the lock, as with bootstrap.sh.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.broker.members import create_topic, produce, unique
from tests.support.kafka import KafkaBroker

ROOT = Path(__file__).parents[2]

READ_TEN = """\
import sys
import fleet_consumer.consumer.consumer
from fleet_consumer import ConnectionSettings, Consumer, ConsumerSettings

bootstrap, topic, group = sys.argv[1:]
settings = ConsumerSettings(
    connection=ConnectionSettings(bootstrap_servers=(bootstrap,), client_id="installed"), group_id=group
)
with Consumer(settings) as consumer:
    consumer.subscribe([topic])
    seen = 0
    while seen < 10:
        seen += len(consumer.poll(1.0))
    consumer.commit()
print(fleet_consumer.consumer.consumer.__file__)
"""


def run(
    *arguments: object, environment: Mapping[str, str] | None = None, folder: Path | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a program away from the checkout; its exit code must be `code`."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(each) for each in arguments],
        cwd=folder,
        env={**clean, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a virtual environment that contains the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    # A copy, as the images make one: building in the checkout would leave files there, and include older ones.
    for name in ("operator/fleet_operator", "consumer_image/fleet_consumer"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "wheels", source)
    run(sys.executable, "-m", "venv", folder / "venv")
    (wheel,) = (folder / "wheels").glob("consumer_fleet-*.whl")
    lock = ROOT / "requirements" / "consumer.txt"
    run(folder / "venv/bin/python", "-m", "pip", "install", "--quiet", "--constraint", lock, wheel)
    return folder / "venv"


def test_installed_library_reads_from_a_broker(installed: Path, broker: KafkaBroker, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap, 1)
    produce(broker.bootstrap, topic, 1, 10)
    script = tmp_path / "read_ten.py"
    script.write_text(READ_TEN)
    done = run(
        installed / "bin/python", "-W", "error", script, broker.bootstrap, topic, unique("installed"), folder=tmp_path
    )
    assert done.stdout.startswith(str(installed)), "the library of the checkout was imported"


def test_library_without_installed_metadata_reads_from_a_broker(
    installed: Path, broker: KafkaBroker, tmp_path: Path
) -> None:
    """A checkout on the path, or an application packed into one file, has no metadata with a version."""
    topic = create_topic(broker.bootstrap, 1)
    produce(broker.bootstrap, topic, 1, 10)
    site = run(installed / "bin/python", "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").stdout.strip()
    bare = tmp_path / "site"
    bare.mkdir()
    for entry in Path(site).iterdir():
        if not entry.name.startswith("consumer_fleet-"):
            (bare / entry.name).symlink_to(entry)
    script = tmp_path / "read_ten.py"
    script.write_text(READ_TEN)
    command = (sys.executable, "-S", "-W", "error", script, broker.bootstrap, topic, unique("bare"))
    done = run(*command, environment={"PYTHONPATH": str(bare)}, folder=tmp_path)
    assert done.stdout.startswith(str(bare))


def test_command_without_its_extra_names_the_extra(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text("def handle(record):\n    return None\n")
    command = installed / "bin/fleet-consumer"
    assert run(command, "--version").stdout.startswith("fleet-consumer 0.")
    run(command, "offsets", "--help")
    local = ("run", "--local", "handler.py", "--topic", "orders", "--bootstrap", "127.0.0.1:9")
    assert "pip install '.[consumer]'" in run(command, *local, folder=tmp_path, code=20).stderr
