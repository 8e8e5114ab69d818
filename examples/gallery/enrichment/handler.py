"""Orders with the customer's name and tier, which a REST service knows; answers are cached for a minute.

Kafka keeps no order between topics: an order can arrive before its customer is known. So an unknown customer is
retried, and only after the last attempt the order goes to the failed topic. The cache is bounded in size and in age:
the age is the longest time for which orders get an old tier.
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
    """Nobody has told the service of this customer yet. The policy names this class."""


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
        raise Fatal("the order names no customer")  # checked, because it becomes part of a URL
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
