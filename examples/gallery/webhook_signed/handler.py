"""Signed webhooks: each event goes to every subscriber, and each subscriber has its own retries.

Two ConsumerGroups use this module. `fan_out` writes one delivery for each subscriber to a topic. `deliver` sends a
delivery, signed according to the Standard Webhooks specification. All attempts have the same `webhook-id`, by which a
receiver recognizes repetitions. Pods read the list of subscribers when they start. If the list of a pod lacks the
subscriber of a delivery, the delivery is retried until the pod has been restarted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import time

import aiohttp

from fleet_consumer import Fatal, Produce, Record, Skip

DELIVERIES = "webhook-deliveries"
EPOCH = int(os.environ.get("TOPIC_EPOCH", "0"))  # raised by one each time the topic is created again
LIMITS = aiohttp.ClientTimeout(total=10, connect=3)


class UnknownSubscriber(LookupError):
    """The pod's list lacks the subscriber, because the list is outdated or the subscriber was removed."""


session: aiohttp.ClientSession
subscribers: dict[str, dict[str, str]]
"""`url` and `secret` by subscriber, from a Secret. With URLs from records, their producers could call any address."""


async def setup(context: object) -> None:
    """Read the subscribers, and open one session. An empty list stops the rollout, because it would drop all events."""
    global session, subscribers
    subscribers = json.loads(os.environ["SUBSCRIBERS"])
    if not subscribers:
        raise ValueError("SUBSCRIBERS names no subscriber, so each event would be dropped: add one to the Secret")
    session = aiohttp.ClientSession(timeout=LIMITS)


async def teardown(context: object) -> None:
    """Close the session."""
    await session.close()


async def fan_out(record: Record) -> list[Produce]:
    """Return one delivery for each subscriber, with the event's bytes as value and the subscriber's name as key."""
    event = f"{record.topic}-{EPOCH}-{record.partition}-{record.offset}".encode()
    return [Produce(DELIVERIES, record.value, key=name, headers=[("event", event)]) for name in subscribers]


async def deliver(record: Record) -> None:
    """Send one delivery to its subscriber. 408, 429, 5xx and no response raise ClientError, and are retried."""
    event, name = dict(record.headers).get("event"), (record.key or b"").decode()
    if event is None or record.value is None:
        raise Fatal("this is no delivery: it has no event")
    if name not in subscribers:
        raise UnknownSubscriber(f"{name} is not in SUBSCRIBERS: restart this pod if the Secret has it")
    target = subscribers[name]
    headers = signed(event.decode(), int(time.time()), record.value, target["secret"])
    async with session.post(target["url"], data=record.value, headers=headers, allow_redirects=False) as response:
        if response.status == 410:
            raise Skip(f"{name} has unsubscribed")
        if 300 <= response.status < 500 and response.status not in (408, 429):
            raise Fatal(f"{name} answered {response.status}")
        response.raise_for_status()


def signed(event: str, now: int, body: bytes, secret: str) -> dict[str, str]:
    """The headers of one request. `now`: seconds since the epoch. The signature covers id, time and body."""
    content = b".".join((event.encode(), str(now).encode(), body))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signature = base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    times = {"webhook-id": event, "webhook-timestamp": str(now), "webhook-signature": f"v1,{signature}"}
    return {"Content-Type": "application/json", **times}
