"""ApiVersions (key 18): the APIs and versions of a broker; the first request on every connection.

A broker that does not know the requested version answers in version 0 with UNSUPPORTED_VERSION (KIP-511).
"""

from __future__ import annotations

from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import array, boolean, int16, int32, int64, string, structure


@structure
class ApiVersionsResponseKey:
    """One API and the range of its versions."""

    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


@structure
class ApiVersionsSupportedFeature:
    """A cluster feature and the levels this broker could run at."""

    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


@structure
class ApiVersionsFinalizedFeature:
    """A cluster feature and the levels the cluster has agreed on."""

    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


@structure
class ApiVersionsResponse(Response, api_key=18, versions=(0, 4), flexible_from=3, bytes_max=1024 * 1024):
    """The APIs and versions that the broker supports."""

    error_code: int = int16()
    api_keys: tuple[ApiVersionsResponseKey, ...] = array(ApiVersionsResponseKey)
    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    supported_features: tuple[ApiVersionsSupportedFeature, ...] = array(
        ApiVersionsSupportedFeature, since=3, default=(), tag=0, ignorable=True
    )
    finalized_features_epoch: int = int64(since=3, default=-1, tag=1, ignorable=True)
    finalized_features: tuple[ApiVersionsFinalizedFeature, ...] = array(
        ApiVersionsFinalizedFeature, since=3, default=(), tag=2, ignorable=True
    )
    zk_migration_ready: bool = boolean(since=3, default=False, tag=3, ignorable=True)


@structure
class ApiVersionsRequest(Request[ApiVersionsResponse]):
    """Asks for the supported APIs; brokers keep statistics of the client's name and version (KIP-511)."""

    client_software_name: str = string(since=3, default="", ignorable=True)
    client_software_version: str = string(since=3, default="", ignorable=True)

    @classmethod
    def decode_response(cls, version: int, buffer: bytes | bytearray | memoryview) -> Response:
        """As for every request, except that an unsupported version is answered in version 0."""
        refused = int.from_bytes(bytes(buffer[:2]), "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION
        return cls.RESPONSE.decode(0 if refused else version, buffer)
