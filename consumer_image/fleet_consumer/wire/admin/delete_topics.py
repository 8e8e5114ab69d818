"""DeleteTopics (key 20): delete topics with their records, by name; from version 6 on by id as well."""

from __future__ import annotations

from uuid import UUID

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import STRING, ZERO_UUID, array, int16, int32, string, structure, uuid


@structure
class DeletableTopicResult:
    """The result for one topic; `name` is None if the request gave only an unknown id."""

    name: str | None = string(nullable_since=6)
    topic_id: UUID = uuid(since=6, default=ZERO_UUID, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(since=5, default=None, nullable_since=5, ignorable=True)


@structure
class DeleteTopicsResponse(Response, api_key=20, versions=(1, 6), flexible_from=4):
    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    responses: tuple[DeletableTopicResult, ...] = array(DeletableTopicResult)


@structure
class DeleteTopicState:
    """A topic, from version 6 on: its name, or its id with the name None."""

    name: str | None = string(since=6, default=None, nullable_since=6)
    topic_id: UUID = uuid(since=6, default=ZERO_UUID)


@structure
class DeleteTopicsRequest(Request[DeleteTopicsResponse]):
    """`topic_names` up to version 5, then `topics`, which all brokers since Kafka 2.8 understand."""

    topics: tuple[DeleteTopicState, ...] = array(DeleteTopicState, since=6, default=())
    topic_names: tuple[str, ...] = array(STRING, until=5, default=(), ignorable=True)
    timeout_ms: int = int32()
