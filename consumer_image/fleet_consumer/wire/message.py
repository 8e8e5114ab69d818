"""Base classes of requests and responses: API key, versions, encoding and decoding.

Both can be encoded and decoded, because scripted brokers of tests need the broker's side.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Self, TypeVar, get_args

from fleet_consumer.wire import codec
from fleet_consumer.wire.errors import MalformedMessage, UnencodableMessage
from fleet_consumer.wire.schema import Structure

BYTES_PER_UNIT = 4
"""The least that an array element takes. Numbers count as one unit; partitions, topics and members as four."""


class Message(Structure):
    """A top-level structure with versions of its own, declared in its class statement as in Kafka's schemas."""

    __slots__ = ()

    API_KEY: ClassVar[int]
    """Of requests and responses only."""

    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_FROM: ClassVar[int | None] = None
    """The first version in the flexible encoding (KIP-482); None when there is none."""

    BYTES_MAX: ClassVar[int] = 16 * 1024 * 1024
    """The largest such message accepted, and for every `BYTES_PER_UNIT` of it one array element: the bound of the
    memory that a hostile peer can claim. Large enough for the largest clusters."""

    def __init_subclass__(
        cls,
        *,
        api_key: int | None = None,
        versions: tuple[int, int] | None = None,
        flexible_from: int | None = None,
        bytes_max: int | None = None,
    ) -> None:
        super().__init_subclass__()
        # A class with slots is made anew without these arguments; the constants of the first are kept.
        if api_key is not None:
            cls.API_KEY = api_key
        if versions is not None:
            cls.MIN_VERSION, cls.MAX_VERSION = versions
        if flexible_from is not None:
            cls.FLEXIBLE_FROM = flexible_from
        if bytes_max is not None:
            cls.BYTES_MAX = bytes_max

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """True if this version uses the flexible encoding."""
        return cls.FLEXIBLE_FROM is not None and version >= cls.FLEXIBLE_FROM

    def encode(self, version: int) -> bytes:
        """Encode this message without a header.

        Raises UnencodableMessage when `version` is not supported or cannot carry a value that is set.
        """
        if not self.MIN_VERSION <= version <= self.MAX_VERSION:
            raise UnencodableMessage(
                f"{type(self).__name__} has versions {self.MIN_VERSION} to {self.MAX_VERSION}, not {version}"
            )
        return codec.encode(self, version, self.is_flexible(version))

    @classmethod
    def decode(cls, version: int, buffer: bytes | bytearray | memoryview) -> Self:
        """Decode one message from the whole buffer. Raises MalformedMessage only."""
        message, end = cls.decode_prefix(version, buffer)
        if end != len(buffer):
            raise MalformedMessage(f"{cls.__name__} version {version}: {len(buffer) - end} bytes too many")
        return message

    @classmethod
    def decode_prefix(cls, version: int, buffer: bytes | bytearray | memoryview) -> tuple[Self, int]:
        """As `decode`, but bytes may follow; returns the message and its end."""
        if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
            raise MalformedMessage(f"{cls.__name__} has versions {cls.MIN_VERSION} to {cls.MAX_VERSION}, not {version}")
        message: Any
        message, end = codec.decode(
            cls, version, cls.is_flexible(version), bytes(buffer), cls.BYTES_MAX // BYTES_PER_UNIT
        )
        return message, end


class Response(Message):
    __slots__ = ()


ResponseT_co = TypeVar("ResponseT_co", bound=Response, covariant=True)


class Request(Message, Generic[ResponseT_co]):
    """A client's request; `ResponseT_co` is the class of the response, at run time `RESPONSE`.

    A request and its response share key, versions and encoding, so these are declared once, at the response.
    """

    __slots__ = ()

    RESPONSE: ClassVar[type[Response]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        (cls.RESPONSE,) = get_args(vars(cls)["__orig_bases__"][0])
        cls.API_KEY = cls.RESPONSE.API_KEY
        cls.MIN_VERSION = cls.RESPONSE.MIN_VERSION
        cls.MAX_VERSION = cls.RESPONSE.MAX_VERSION
        cls.FLEXIBLE_FROM = cls.RESPONSE.FLEXIBLE_FROM

    @property
    def version_max(self) -> int:
        """The highest version that can carry this request's values."""
        return self.MAX_VERSION

    @classmethod
    def decode_response(cls, version: int, buffer: bytes | bytearray | memoryview) -> Response:
        """Decode the response to a request of this version. Raises MalformedMessage only."""
        return cls.RESPONSE.decode(version, buffer)
