"""The rates of the partitions that a consumer owns, for assignors that assign by load (`TakesRates`).

A rate is the growth of a partition's end offset or, while the end offset is unknown, of the position. Rates count
offsets, not records, so they are slightly too large in compacted or transactional topics.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from fleet_consumer.assignors import TakesRates
from fleet_consumer.consumer.engine import Engine
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.record import TopicPartition

HALF_LIFE_S: Final = 60.0
"""Age in seconds at which an observation has half its weight."""
KNOWN_AFTER_S: Final = 30.0
"""Minimum seconds of observation before a partition's rate is known."""
SHORTEST_S: Final = 1.0
"""Minimum seconds between two observations; earlier observations are ignored."""
ENDS_INTERVAL_S: Final = 10.0


@dataclass(slots=True)
class _Observed:
    """A partition's last observed offset with its time, the weighted mean of its rates, and the sum of the weights."""

    offset: int
    at: float
    rate: float = 0.0
    weight: float = 0.0


class RateEstimator:
    """Computes the rates of growing offsets, as exponentially weighted means. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._observed: dict[TopicPartition, _Observed] = {}

    def observe(self, offsets: Mapping[TopicPartition, int], now: float) -> None:
        """Record offsets. If an offset is lower than before (after a seek or truncation), observation restarts."""
        for part, offset in offsets.items():
            seen = self._observed.get(part)
            if seen is None or offset < seen.offset:
                self._observed[part] = _Observed(offset, now)
                continue
            elapsed = now - seen.at
            if elapsed < SHORTEST_S:
                continue
            remains = 0.5 ** (elapsed / HALF_LIFE_S)
            weight = seen.weight * remains + 1 - remains
            rate = (seen.rate * seen.weight * remains + (offset - seen.offset) / elapsed * (1 - remains)) / weight
            self._observed[part] = _Observed(offset, now, rate, weight)

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        self._observed = {part: seen for part, seen in self._observed.items() if part in partitions}

    def rates(self) -> dict[TopicPartition, float]:
        """Return the offsets per second of partitions that were observed for at least `KNOWN_AFTER_S` seconds."""
        enough = 1 - 0.5 ** (KNOWN_AFTER_S / HALF_LIFE_S)
        # 1e-9 allows for the rounding errors of many steps.
        return {part: seen.rate for part, seen in self._observed.items() if seen.weight >= enough - 1e-9}


class RateWatch:
    """Observes the owned partitions and reports their rates to assignors. Belongs to the user's thread."""

    def __init__(self, engine: Engine, takers: tuple[TakesRates, ...]) -> None:
        self._engine = engine
        self._takers = takers
        self._arriving = RateEstimator()
        self._consumed = RateEstimator()
        self._lookup: tuple[Ticket[dict[TopicPartition, int]], float] | None = None
        self._update_at = float("-inf")

    def update(self, now: float) -> None:
        """Observe the end offsets of a finished lookup. Every `ENDS_INTERVAL_S` seconds, report rates and start the
        next lookup, with one request to each leader."""
        engine, positions = self._engine, self._engine.positions
        if not self._takers or positions is None or engine.manual:
            return
        if self._lookup is not None and self._lookup[0].done:
            ticket, asked_at = self._lookup
            self._lookup = None
            self._arriving.observe(ticket.result or {}, asked_at)
        if now < self._update_at:
            return
        self._update_at = now + ENDS_INTERVAL_S
        owned = positions.owned
        self._consumed.observe({part: entry.offset for part, entry in positions.committable().items()}, now)
        self._arriving.keep(owned)
        self._consumed.keep(owned)
        rates = by_topic({**self._consumed.rates(), **self._arriving.rates()})
        for taker in self._takers:
            taker.on_rates(rates)
        if self._lookup is not None:
            self._lookup[0].cancel()
            self._lookup = None
        if owned:
            ends = engine.group.end_offsets(sorted(owned), read_committed=engine.settings.read_committed)
            self._lookup = ends, now


def by_topic(rates: Mapping[TopicPartition, float]) -> dict[str, dict[int, float]]:
    grouped: dict[str, dict[int, float]] = {}
    for (topic, number), rate in rates.items():
        grouped.setdefault(topic, {})[number] = rate
    return grouped
