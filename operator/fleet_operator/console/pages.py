"""Builds and renders the console's pages with minijinja. The templates escape every value."""

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from minijinja import Environment

from fleet_consumer.clock import Clock
from fleet_operator.api.v1alpha1.explanations import EXPLANATIONS
from fleet_operator.console.board import Board, Facts, Source
from fleet_operator.console.views.backfills import backfill_views
from fleet_operator.console.views.fleet import fleet_view
from fleet_operator.console.views.fleets import Key, ListQuery, fleet_list, fleet_row
from fleet_operator.console.views.plot import HEIGHT, WIDTH
from fleet_operator.console.views.retries import retries_view
from fleet_operator.console.views.scaling import scaling_view
from fleet_operator.planning.lag import lag_text
from fleet_operator.planning.observation import ClusterObservation

TABS: Final = {"": "Fleet", "retries": "Retries", "scaling": "Scaling", "backfills": "Backfills"}
PLOT_SECONDS: Final = 10.0
"""Interval in seconds at which plots are redrawn even if no value has changed, so that the time axis moves on."""
STATIC: Final = {"console.css": "text/css", "console.js": "text/javascript"}


@dataclass(frozen=True, slots=True)
class Page:
    """A page. Pages with equal `key` have the same content. `render` returns the part of the page that is updated while
    the page is open; None if the fleet was deleted."""

    key: Hashable
    title: str
    context: Mapping[str, Any]
    render: Callable[[], Awaitable[str | None]]


class Pages:
    """Builds pages from the board and the caches."""

    def __init__(self, board: Board, source: Source, clock: Clock) -> None:
        self._board, self._source, self._clock = board, source, clock
        folder = files("fleet_operator.console")
        templates = {each.name: each.read_text(encoding="utf-8") for each in folder.joinpath("templates").iterdir()}
        self._environment = Environment(templates=templates, trim_blocks=True, lstrip_blocks=True)
        self._environment.add_filter("count", _count)
        self._environment.add_filter("decimal", _decimal)
        self._environment.add_filter("bucket", _bucket)
        self.static = {name: (kind, folder.joinpath("static", name).read_bytes()) for name, kind in STATIC.items()}

    def render(self, template: str, **context: Any) -> str:
        return self._environment.render_template(template, **context)

    def list_page(self, query: ListQuery, namespaces: frozenset[str] | None, *, cut: bool) -> Page:
        """The list of fleets in these namespaces (None: all). `cut`: the viewer's permissions were not checked in all
        namespaces, because there are too many."""
        made: tuple[int, str] | None = None

        async def render() -> str:
            nonlocal made
            if made is None or made[0] != self._board.version:
                found = fleet_list(self._board.ordered(), query, namespaces)
                made = self._board.version, self.render("list_live.html", list=found, query=query, cut=cut)
            return made[1]

        shown = self._board.namespaces() if namespaces is None else sorted(namespaces)
        context = {"query": query, "namespaces": shown[:1000]}
        return Page(("list", query, namespaces, cut), "Fleets", context, render)

    def fleet_page(self, key: Key, tab: str, *, backfills: bool) -> Page:
        """One tab of a fleet's page. `backfills`: the viewer may list Backfills in the fleet's namespace."""
        made: tuple[Hashable, ClusterObservation | None, str] | None = None

        async def render() -> str | None:
            nonlocal made
            facts = await self._source.facts(key)
            if facts is None:
                return None
            seen, context = await self._context(key, tab, facts, backfills)
            if made is None or made[0] != seen or made[1] is not facts.observation:
                text = self.render(f"{tab or 'fleet'}_live.html", width=WIDTH, height=HEIGHT, **context())
                made = seen, facts.observation, text
            return made[2]

        context = {"namespace": key[0], "name": key[1], "tab": tab, "tabs": TABS}
        return Page(("fleet", key, tab, backfills), f"{key[1]} in {key[0]}", context, render)

    async def _context(
        self, key: Key, tab: str, facts: Facts, backfills: bool
    ) -> tuple[Hashable, Callable[[], dict[str, Any]]]:
        """Returns a version and a function. The version changes with everything that the tab shows, except observed
        values. The function returns the variables of the tab's template."""
        body, observation = facts.body, facts.seen(self._clock.wall())
        trust = (observation.reachable, observation.current) if observation is not None else None
        version: Hashable = (body["metadata"]["resourceVersion"], trust)
        if tab == "retries":
            return version, lambda: {
                "row": fleet_row(body),
                "retries": retries_view(body, observation, EXPLANATIONS),
            }
        if tab == "scaling":
            now = self._clock.wall() // PLOT_SECONDS * PLOT_SECONDS
            return (version, now), lambda: {
                "row": fleet_row(body),
                "scaling": scaling_view(body, self._board.histories.get(key), now + PLOT_SECONDS),
            }
        if tab == "backfills":
            found = await self._source.backfills(key) if backfills else []
            versions = (version, tuple(each["metadata"]["resourceVersion"] for each in found))
            return versions, lambda: {
                "row": fleet_row(body),
                "backfills": backfill_views(found, EXPLANATIONS),
                "allowed": backfills,
            }
        return version, lambda: {
            "row": fleet_row(body),
            "fleet": fleet_view(body, observation, EXPLANATIONS),
        }


def _count(value: int | None) -> str:
    """Format an integer with narrow spaces between thousands; a dash for None (unknown)."""
    if value is None:
        return "–"
    return f"{value:,}".replace(",", "\u202f")


def _decimal(value: float | None) -> str:
    """Format a number with at most two decimals, and spaces between thousands; a dash for None (unknown)."""
    if value is None:
        return "–"
    whole, _, rest = f"{value:.2f}".partition(".")
    rest = rest.rstrip("0")
    return _count(int(whole)) + (f".{rest}" if rest else "")


def _bucket(value: int | None) -> str:
    """Format a bucket, the rounded lag of a status; a dash for None (unknown)."""
    return "–" if value is None else lag_text(value)
