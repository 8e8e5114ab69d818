"""Add the customer's name and tier, from a REST service, to each order; answers are cached for a minute.

Kafka has no order between topics, so an order can arrive before the service knows its customer. Such an order is
retried, and goes to the failed topic only after the last attempt. The cache is limited in size and in age. The age is
the longest time for which orders get an outdated tier.
"""

from __future__ import annotations

import json
import os
import time
from collections import OrderedDict
from typing import Any

import aiohttp

from fleet_consumer import Fatal, Produce, Record

OUTPUT = "orders-enriched"
LIMITS = aiohttp.ClientTimeout(total=5, connect=2)
CACHED_MAX = 10_000
CACHED_S = 60.0

session: aiohttp.ClientSession
cache: OrderedDict[str, tuple[float, dict[str, Any]]] = OrderedDict()


class UnknownCustomer(LookupError):
    """The service does not know this customer yet. The RetryPolicy names this class."""


async def setup(context: object) -> None:
    """Open one session for all look-ups."""
    global session
    session = aiohttp.ClientSession(os.environ["CUSTOMERS_URL"], timeout=LIMITS)


async def teardown(context: object) -> None:
    """Close the session."""
    await session.close()


async def handle(record: Record) -> Produce:
    """Return the order with its customer's name and tier, under the order's own key."""
    order = record.value
    if not isinstance(order, dict) or not str(order.get("customer", "")).isalnum():
        raise Fatal("the order names no customer")  # the id becomes part of a URL
    customer = await customer_of(str(order["customer"]))
    known = {"name": customer["name"], "tier": customer["tier"]}
    return Produce(OUTPUT, json.dumps({**order, "customer": {"id": order["customer"], **known}}), key=record.key)


async def customer_of(name: str) -> dict[str, Any]:
    """The customer from the cache, or from the service. A broken service raises ClientError, which is retried."""
    found = cache.get(name)
    if found is not None and time.monotonic() - found[0] < CACHED_S:
        return found[1]
    async with session.get(f"/customers/{name}") as response:
        if response.status == 404:
            raise UnknownCustomer(name)
        response.raise_for_status()
        customer: dict[str, Any] = await response.json()
    cache[name] = (time.monotonic(), customer)
    cache.move_to_end(name)
    if len(cache) > CACHED_MAX:
        cache.popitem(last=False)
    return customer
