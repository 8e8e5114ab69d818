"""Curves of the simulator: CSV files and steps, and what is said about wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.simulate.curves import CurveInvalid, parse_steps, read_csv


def test_recorded_curve_begins_at_any_time(tmp_path: Path) -> None:
    file = tmp_path / "curve.csv"
    file.write_text("\ufefftime,rate\n1800000000,50\n1800000300,300.5\n1800000600,0\n")
    curve = read_csv(file).arrivals
    assert (curve(0), curve(299), curve(300), curve(599), curve.seconds) == (50, 50, 300.5, 300.5, 600)


def test_columns_of_workers_and_partitions_change_with_time(tmp_path: Path) -> None:
    file = tmp_path / "curve.csv"
    file.write_text(
        "time,rate,capacity,record_seconds,downstream,partition_1,partition_0\n"
        "0,50,60,0.5,1e9,1,3\n600,50,12,2,50,1,0\n1200,50,60,0.5,1e9,1,3\n"
    )
    found = read_csv(file)
    assert found.capacity is not None
    assert found.record_s is not None
    assert found.downstream is not None
    assert found.shares is not None
    assert [found.capacity(at) for at in (0, 600, 1300)] == [60, 12, 60]
    assert (found.record_s(700), found.downstream(700)) == (2, 50)
    assert (found.shares(0), found.shares(600)) == ((0.75, 0.25), (0.0, 1.0))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "line 1: the columns time and rate are missing; it has nothing; name both there"),
        ("seconds,rate\n1,2\n", "line 1: the columns time and rate are missing; it has seconds, rate"),
        ("time,rate,topic\n1,2,a\n", "line 1: the column 'topic' is unknown; columns are time, rate,"),
        ("time,rate,rate\n1,2,3\n", "line 1: a column is there twice"),
        ("time,rate,partition_1\n1,2,3\n", "the 1 columns of partitions must be numbered from partition_0 on"),
        ("time,rate\n1,2\n", "has 1 lines of data and needs two at least"),
        ("time,rate\n1,2\n1,3\n", "line 3: times must rise, but 1 follows 1; sort the lines by time"),
        ("time,rate\n1,2\n2,-3\n", "line 3: rate is -3; give a number from 0"),
        ("time,rate\n1,2\n2,many\n", "line 3, rate: found 'many'; give a number"),
        ("time,rate\n1,2\n2,nan\n", "line 3, rate: found 'nan'; give a number"),
        ("time,rate\n1,2\n2\n", "line 3, rate: found nothing; give a number"),
        ("time,rate,capacity\n1,2,0\n2,2,1\n", "line 2: capacity is 0; give a number from 1e-09"),
        ("time,rate,record_seconds\n1,2,1e9\n2,2,1\n", "line 2: record_seconds is 1e+09; give a number from"),
        ("time,rate,partition_0\n1,2,-1\n2,2,1\n", "line 2: shares must not be negative"),
        ("time,rate,partition_0\n1,2,0\n2,2,1\n", "line 2: shares must not be negative, and one must be more than 0"),
    ],
)
def test_file_that_is_no_curve_is_refused_with_the_place(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "curve.csv"
    file.write_text(content)
    with pytest.raises(CurveInvalid, match=re.escape(says)) as refused:
        read_csv(file)
    assert str(file) in str(refused.value)


def test_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "curve.csv"
    file.write_bytes(b"time,rate\n\xff\xfe,3\n")
    with pytest.raises(CurveInvalid, match="cannot be read"):
        read_csv(file)


@pytest.mark.parametrize("text", ["600", "0:5", "-3:5", "5:-1", "5:x", ""])
def test_steps_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(CurveInvalid):
        parse_steps(text)
