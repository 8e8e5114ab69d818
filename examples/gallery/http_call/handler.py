"""Call a payment service for each order, with an idempotency key and classified errors.

If the service is busy (429, 503) or broken (other 5xx, no connection, too slow), the order is retried. An order that
the service refuses (400, 402, 413, 422) goes to the failed topic at once. Any other status, such as a redirect, is
retried: the service or the deployment is wrong, and the policy's budget of failures pauses the workers. The idempotency
key is made of topic, epoch, partition and offset, which are the same in every attempt. So the service charges once.
"""

from __future__ import annotations

import json
import os

import aiohttp

from fleet_consumer import Fatal, Produce, Record, RetryAfter

OUTPUT = "payments"
EPOCH = int(os.environ.get("TOPIC_EPOCH", "0"))  # raised by one each time the topic is created again
LIMITS = aiohttp.ClientTimeout(total=8, connect=2)
"""Seconds. Below `handler.timeoutSeconds`, so an error names the service and not the worker's time limit."""
PAUSE_S = 30.0
REFUSALS = (400, 402, 413, 422)

session: aiohttp.ClientSession


class UnexpectedStatus(Exception):
    """A status that neither accepts nor refuses the order: a redirect, a wrong path or token, or a conflict."""


async def setup(context: object) -> None:
    """Open one session for all calls. A missing variable stops the rollout here, before any record is handled."""
    global session
    login = {"Authorization": f"Bearer {os.environ['PAYMENTS_TOKEN']}"}
    session = aiohttp.ClientSession(os.environ["PAYMENTS_URL"], timeout=LIMITS, headers=login)


async def teardown(context: object) -> None:
    """Close the session."""
    await session.close()


async def handle(record: Record) -> Produce:
    """Return the service's answer for `payments`."""
    once = {"Idempotency-Key": f"{record.topic}-{EPOCH}-{record.partition}-{record.offset}"}
    async with session.post("/payments", json=record.value, headers=once, allow_redirects=False) as response:
        if response.status in (429, 503):
            raise RetryAfter(wanted_pause(response.headers.get("Retry-After", "")))
        if response.status in REFUSALS:
            raise Fatal(f"{response.url} answered {response.status}: {(await response.text())[:200]}")
        if not 200 <= response.status < 300:
            hint = "check PAYMENTS_URL and PAYMENTS_TOKEN, unless the service is broken"
            raise UnexpectedStatus(f"{response.url} answered {response.status}: {hint}")
        payment = await response.json()
    return Produce(OUTPUT, json.dumps(payment), key=record.key)


def wanted_pause(retry_after: str) -> float:
    """The seconds of a Retry-After header; PAUSE_S if the header is missing or has a date."""
    return float(retry_after) if retry_after.isdigit() else PAUSE_S
