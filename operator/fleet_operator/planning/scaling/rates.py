"""Rates of arrival from samples of offsets.

Rates over a few seconds follow a change at once, and of few records they are chance. So a rate is that of the shortest
window in which enough has arrived, and the partitions' rates are drawn to their mean the more, the fewer records each
had: of three partitions with 0, 1 and 2 records in a window none is known to be busier than another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fleet_operator.planning.observation import ProgressSample
from fleet_operator.planning.scaling.facts import Partition, Rates, rates_over, span, window

WINDOWS_S: Final = (5.0, 10.0, 20.0, 60.0, 90.0, 300.0, 900.0)
ENOUGH: Final = 20
"""Records from which a rate is known within about a quarter."""
PRIOR: Final = 3.0
"""Records of the mean that count for each partition besides its own, as in a Bayesian estimate of a Poisson rate."""


def rates_from(samples: Sequence[ProgressSample], least_s: float) -> Mapping[Partition, float] | None:
    """Records per second of each partition over the shortest window of at least so many seconds in which enough has
    arrived; over all samples where none has enough, and None without two samples."""
    reach, found = span(samples), None
    for seconds in WINDOWS_S:
        if seconds < least_s:
            continue
        found = rates_over(window(samples, seconds))
        if found is None or found.arrived >= ENOUGH or seconds >= reach:
            break
    return None if found is None else drawn_to_mean(found)


def drawn_to_mean(rates: Rates) -> dict[Partition, float]:
    """The rates of arrival with the mean as what was known of each partition before."""
    if not rates.arrival:
        return {}
    mean = rates.arrived / len(rates.arrival)
    own = mean / (mean + PRIOR)
    rest = (1.0 - own) * mean / rates.seconds
    return {key: own * rate + rest for key, rate in rates.arrival.items()}
