"""Write clicks as JSON lines to an object store, one object for each batch.

An object's name is made of its records' topics, partitions and offsets, so a batch that is handled twice overwrites its
object. After a crash, batches may have other boundaries, and a record may be in two objects. Each line has topic,
epoch, partition and offset, by which a reader can drop duplicates (`SELECT DISTINCT ON`, `dropDuplicates`).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from fleet_consumer import Record, RetryAfter

EPOCH = int(os.environ.get("TOPIC_EPOCH", "0"))  # raised by one each time the topic is created again
LIMITS = Config(connect_timeout=3, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 2})
PAUSE_S = 60.0

store: Any
bucket: str


def setup(context: object) -> None:
    """Create the client. Its keys are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or those of the pod's identity."""
    global store, bucket
    bucket = os.environ["BUCKET"]
    store = boto3.client("s3", endpoint_url=os.environ.get("S3_ENDPOINT"), config=LIMITS)


def handle_batch(records: list[Record]) -> list[RetryAfter] | None:
    """Write one object. While the store is down, all records of the batch wait in a retry topic."""
    lines = [json.dumps(line_of(record), separators=(",", ":")) for record in records]
    body = gzip.compress("\n".join(lines).encode() + b"\n", mtime=0)  # no time, so equal batches give equal bytes
    try:
        store.put_object(Bucket=bucket, Key=name_of(records), Body=body, ContentType="application/x-ndjson")
    except (BotoCoreError, ClientError):
        return [RetryAfter(PAUSE_S) for _ in records]
    return None


def line_of(record: Record) -> dict[str, Any]:
    """The content of one line: the record's topic, epoch, partition, offset, timestamp and value."""
    place = {"topic": record.topic, "epoch": EPOCH, "partition": record.partition, "offset": record.offset}
    return {**place, "at": record.timestamp, "click": record.value}


def name_of(records: list[Record]) -> str:
    """The object's name. In a retry worker, a batch can have records of several topics, with gaps in offsets."""
    places = ",".join(f"{record.topic}:{record.partition}:{record.offset}" for record in records)
    first = records[0]
    digest = hashlib.sha256(places.encode()).hexdigest()[:12]
    return f"{first.topic}/epoch={EPOCH}/partition={first.partition}/{first.offset:020d}-{digest}.jsonl.gz"
