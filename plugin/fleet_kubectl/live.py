"""The rows of `top`: all fleets, filtered and sorted; changes are applied in batches. Pure.

Rows are sorted once for each batch of changes, and only the rows on the screen are drawn.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from fleet_kubectl.groups import Fleet, fleet_of

JsonObject = Mapping[str, Any]
Key = tuple[str, str]

ORDERS: Final[Mapping[str, Callable[[Fleet], tuple[Any, ...]]]] = {
    "problems": lambda fleet: (fleet.rank, *fleet.key),
    "lag": lambda fleet: (-(fleet.lag or 0), *fleet.key),
    "failed": lambda fleet: (-(fleet.failed or 0), *fleet.key),
    "waiting": lambda fleet: (-(fleet.waiting or 0), *fleet.key),
    "workers": lambda fleet: (-fleet.workers, *fleet.key),
    "name": lambda fleet: fleet.key,
}
"""Sort keys of the orders in which `top` can show fleets, keyed by the displayed name."""


class Rows:
    """All fleets, and `shown`: the fleets that the filter selects, in the chosen order."""

    def __init__(self) -> None:
        self._bodies: dict[Key, JsonObject] = {}
        self._fleets: dict[Key, Fleet] = {}
        self.shown: list[Fleet] = []
        self.order = next(iter(ORDERS))
        self.reverse = False
        self.text = ""

    @property
    def total(self) -> int:
        return len(self._fleets)

    @property
    def not_ready(self) -> int:
        return sum(fleet.ready != "True" for fleet in self._fleets.values())

    def body(self, key: Key) -> JsonObject | None:
        return self._bodies.get(key)

    def replace(self, bodies: Iterable[JsonObject]) -> None:
        """Replace all objects by those of a new list."""
        self._bodies, self._fleets = {}, {}
        for body in bodies:
            self._set(body)
        self.arrange()

    def apply(self, events: Iterable[JsonObject]) -> None:
        """Apply a batch of watch events."""
        for event in events:
            if event["type"] == "DELETED":
                key = _key(event["object"])
                self._bodies.pop(key, None)
                self._fleets.pop(key, None)
            elif event["type"] in ("ADDED", "MODIFIED"):
                self._set(event["object"])
        self.arrange()

    def arrange(self) -> None:
        """Filter and sort the rows again."""
        words = self.text.lower().split()
        chosen = [fleet for fleet in self._fleets.values() if all(word in _searched(fleet) for word in words)]
        self.shown = sorted(chosen, key=ORDERS[self.order], reverse=self.reverse)

    def next_order(self) -> None:
        orders = list(ORDERS)
        self.order = orders[(orders.index(self.order) + 1) % len(orders)]
        self.arrange()

    def _set(self, body: JsonObject) -> None:
        fleet = fleet_of(body)
        self._bodies[fleet.key], self._fleets[fleet.key] = body, fleet


def _key(body: JsonObject) -> Key:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def _searched(fleet: Fleet) -> str:
    ready = {"True": "ready", "False": "notready"}.get(fleet.ready, "unknown")
    return f"{fleet.namespace}/{fleet.name} {ready} {fleet.reason} {fleet.state}".lower()
