"""redrive.json is read whole, or refused with the place and the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.contract.redrive_config import load_config, parse_config
from fleet_consumer.contract.section import SettingsInvalid
from tests.unit.redrive.documents import ID, document


def test_every_field_of_the_document_is_read() -> None:
    config = parse_config(
        document(
            filter={
                "reasons": ["exhausted", "timeout"],
                "errorRegex": "ValueError: cancel.*",
                "keyRegex": "^UA",
                "fromTime": 5,
                "toTime": 9,
                "records": [
                    {"partition": 3, "offset": 17},
                    {"partition": 0, "offset": 17},
                    {"partition": 3, "offset": 0},
                ],
            },
            producer={"properties": {"linger.ms": "50"}},
            recordsPerSecond=100,
            maxRecords=1000,
            dryRun=True,
        )
    )
    assert (config.id, config.group_id, config.dry_run) == (ID, "orders", True)
    assert config.filter.reasons == {"exhausted", "timeout"}
    assert config.filter.error is not None
    assert config.filter.key is not None
    assert (config.filter.from_ms, config.filter.to_ms) == (5, 9)
    assert config.filter.places == {3: frozenset({0, 17}), 0: frozenset({17})}
    assert (config.records_per_second, config.max_records, config.max_redrives) == (100, 1000, 3)
    assert config.producer_properties == {"linger.ms": "50"}
    assert parse_config(document()).producer_properties == {}
    assert config.brokers.bootstrap_servers == ("127.0.0.1:9092",)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("version", 2, "redrive.json.version: must be 1 to 1"),
        ("id", "a/b", "does not match"),
        ("groupId", "", "non-empty string"),
        ("connection__bootstrapServers", [], "at least 1 entry"),
        ("filter__errorRegex", "(", "not a usable regular expression"),
        ("filter__keyRegex", "(?=a)a", "the syntax is RE2's"),
        ("filter__fromTime", -1, "must be 0 to"),
        ("filter__reasons", "exhausted", "must be a list"),
        ("filter__records", [], "must be a list of records"),
        ("filter__records", [{"partition": 1}], "records[0].offset: is missing"),
        ("filter__records", [{"partition": -1, "offset": 1}], "must be at least 0"),
        ("recordsPerSecond", 0, "at least 1"),
        ("maxRecords", 0.5, "must be a whole number"),
        ("dryRun", "yes", "must be true or false"),
        ("maxRedrives", 0, "at least 1"),
        ("surprise", 1, "not a setting"),
    ],
)
def test_bad_field_is_refused_with_its_place(name: str, value: Any, told: str) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        parse_config(document(**{name: value}))
    assert told in str(refused.value)
    assert name.rpartition("__")[2] in str(refused.value)


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="cannot read"):
        load_config(str(tmp_path / "redrive.json"))
