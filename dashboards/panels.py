"""Builders for the parts of the dashboards: panels, rows and variables.

Queries for rates use `$__rate_interval`, which Grafana computes from the scrape interval and the time range.
"""

import json
from collections.abc import Sequence
from itertools import count
from typing import Final

from grafana_foundation_sdk.builders import common, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueColorMode, DataSourceRef, LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import Dashboard as Built
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataTransformerConfig,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
TAGS: Final = ["consumer-fleet"]
WIDTH: Final = 24
"""Number of columns of Grafana's grid."""
HEIGHT: Final = 8

Query = tuple[str, str]
"""PromQL expression, and legend."""
Panel = timeseries.Panel | stat.Panel | table.Panel
Section = tuple[str, Sequence[Panel]]
"""Title of a row, and its panels."""


def dashboard(name: str, description: str, variables: Sequence[QueryVariable], sections: Sequence[Section]) -> Built:
    """Build a dashboard with these variables, another for the data source, and a row of panels per section."""
    found = (
        Dashboard(f"Consumer Fleet / {name}")
        .uid(f"consumer-fleet-{name.lower()}")
        .description(description)
        .tags(TAGS)
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in variables:
        found = found.with_variable(variable)
    ids = count(1)
    for title, panels in sections:
        found = found.with_row(Row(title).id(next(ids)))
        for panel in panels:
            found = found.with_panel(panel.id(next(ids)))
    return found.build()


def choice(name: str, label: str, query: str, *, several: bool = False) -> QueryVariable:
    """Build a variable with the values that `query` returns. With `several`, all values are selected by default."""
    variable = (
        QueryVariable(name).label(label).datasource(SOURCE).query(query).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )
    return variable.multi(True).include_all(True).all_value(".*") if several else variable


def graph(title: str, unit: str, *queries: Query, text: str = "", columns: int = 2) -> timeseries.Panel:
    """Build a panel with lines over time and a legend below."""
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel = (
        timeseries.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .height(HEIGHT)
        .span(WIDTH // columns)
        .legend(legend.show_legend(True))
    )
    for number, (expression, name) in enumerate(queries):
        query = Dataquery().datasource(SOURCE).expr(expression).legend_format(name).ref_id(_letter(number))
        panel = panel.with_target(query.range())
    return panel


def number(title: str, unit: str, expression: str, *, text: str = "", columns: int = 6) -> stat.Panel:
    """Build a panel that shows the current value of an expression."""
    query = Dataquery().datasource(SOURCE).expr(expression).ref_id("A")
    return (
        stat.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .unit(unit)
        .height(HEIGHT // 2)
        .span(WIDTH // columns)
        .color_mode(BigValueColorMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(query.instant())
    )


def rows_of(title: str, *expressions: str, text: str = "", hidden: Sequence[str] = ()) -> table.Panel:
    """Build a table with a row for each combination of labels, and a column for each label and expression."""
    panel = table.Panel().title(title).description(text).datasource(SOURCE).height(HEIGHT + 2).span(WIDTH)
    for number, expression in enumerate(expressions):
        query = Dataquery().datasource(SOURCE).expr(expression).ref_id(_letter(number))
        panel = panel.with_target(query.format(PromQueryFormat.TABLE).instant())
    excluded = dict.fromkeys(["Time", "__name__", *hidden], True)
    merge = DataTransformerConfig(id_val="merge", options={})
    organize = DataTransformerConfig(id_val="organize", options={"excludeByName": excluded})
    return panel.with_transformation(merge).with_transformation(organize)


def as_json(built: Built) -> str:
    """Return a dashboard as the content of a JSON file."""
    return json.dumps(built, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _letter(number: int) -> str:
    """Return Grafana's name (refId) of the panel's query with this index."""
    return chr(ord("A") + number)
