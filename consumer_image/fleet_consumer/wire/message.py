"""Base classes of requests and responses: API key, versions, encoding and decoding.

Requests and responses can be encoded and decoded, because tests play the broker's part.
"""

from typing import Any, ClassVar, Generic, Self, TypeVar, get_args

from fleet_consumer.wire import codec
from fleet_consumer.wire.errors import MalformedMessage, UnencodableMessage
from fleet_consumer.wire.schema import Structure

BYTES_PER_UNIT = 4
"""Limits the number of array elements in a message, and so their memory. Elements are counted in units: a number is one
unit; any other element, such as a partition, topic or member, is four (`primitives.STRUCTURE_COST`). A message may have
one unit for every BYTES_PER_UNIT bytes of its size limit (`BYTES_MAX`)."""


class Message(Structure):
    """A top-level structure with its own versions. The class statement declares the versions as in Kafka's schemas."""

    __slots__ = ()

    API_KEY: ClassVar[int]
    """Number of the API; only requests and responses have one."""

    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_FROM: ClassVar[int | None] = None
    """The first version with the flexible encoding (KIP-482), or None."""

    BYTES_MAX: ClassVar[int] = 16 * 1024 * 1024
    """Maximum size of an accepted message in bytes, which also limits its array elements (`BYTES_PER_UNIT`). The limit
    bounds the memory that a hostile peer can claim, and suffices for the largest clusters."""

    def __init_subclass__(
        cls,
        *,
        api_key: int | None = None,
        versions: tuple[int, int] | None = None,
        flexible_from: int | None = None,
        bytes_max: int | None = None,
    ) -> None:
        super().__init_subclass__()
        # `dataclass` creates a class with slots twice, so this method is called twice. The second call gets no
        # arguments; the class then keeps the constants of the first call.
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
        return cls.FLEXIBLE_FROM is not None and version >= cls.FLEXIBLE_FROM

    def encode(self, version: int) -> bytes:
        """Encode this message without a header. Raises UnencodableMessage if `version` is not supported or cannot carry
        a value that is set."""
        if not self.MIN_VERSION <= version <= self.MAX_VERSION:
            raise UnencodableMessage(
                f"{type(self).__name__} has versions {self.MIN_VERSION} to {self.MAX_VERSION}, not {version}"
            )
        return codec.encode(self, version, self.is_flexible(version))

    @classmethod
    def decode(cls, version: int, buffer: bytes | bytearray | memoryview) -> Self:
        """Decode a message from the whole buffer. Raises only MalformedMessage."""
        message, end = cls.decode_prefix(version, buffer)
        if end != len(buffer):
            raise MalformedMessage(f"{cls.__name__} version {version}: {len(buffer) - end} bytes too many")
        return message

    @classmethod
    def decode_prefix(cls, version: int, buffer: bytes | bytearray | memoryview) -> tuple[Self, int]:
        """Decode a message at the start of a buffer. Returns it and its end position. Raises only MalformedMessage."""
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
    """A client's request. `ResponseT_co`, also the attribute `RESPONSE`, is the class of its response. The response
    class declares the key, versions and encoding of request and response."""

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
        return cls.RESPONSE.decode(version, buffer)
