"""Sort support tickets by a language model, at any endpoint with OpenAI's chat completions.

- Rate: each worker pauses between two calls. The rate of the fleet is `replicas` times the rate of one worker.
- Cost: the text is cut, the answer is one word, and each worker has a budget of tokens per hour. Tickets beyond the
  budget wait in a retry topic, until half of the budget is free again. Each such wait uses one of the policy's fifty
  attempts, which last more than three days. An answer that is not a queue fails at once, to save the cost of retries.
  A ticket that is handled twice costs twice, but its output has the same key.
- Prompt injection: anybody can write a ticket. The model has no tools, and its answer counts only if it is one of four
  words. So a hostile ticket can at most get itself into the wrong queue.
"""

from __future__ import annotations

import asyncio
import json
import os
import time

import aiohttp

from fleet_consumer import Fatal, Produce, Record, RetryAfter

OUTPUT = "tickets-sorted"
QUEUES = ("billing", "technical", "account", "other")
TASK = f"Sort the support ticket in the user's message. Answer one of these words only: {', '.join(QUEUES)}."
TEXT_MAX = 4000  # characters, about 1000 tokens
ANSWER_MAX = 5  # tokens
EPOCH = int(os.environ.get("TOPIC_EPOCH", "0"))  # raised by one each time the topic is created again
PAUSE_S = float(os.environ.get("LLM_PAUSE_SECONDS", "1"))
TOKENS_PER_HOUR = int(os.environ.get("LLM_TOKENS_PER_HOUR", "200000"))

session: aiohttp.ClientSession
turn = asyncio.Lock()
spent: list[tuple[float, int]] = []
"""Time (seconds, monotonic clock) and number of tokens of each call in the last hour."""


async def setup(context: object) -> None:
    """Open one session for all calls."""
    global session
    login = {"Authorization": f"Bearer {os.environ['LLM_API_KEY']}"}
    session = aiohttp.ClientSession(headers=login, timeout=aiohttp.ClientTimeout(total=60))


async def teardown(context: object) -> None:
    """Close the session."""
    await session.close()


async def handle(record: Record) -> Produce:
    """Return the ticket's queue. Any other answer fails: at temperature 0, another call gives the same answer."""
    if not isinstance(record.value, dict) or not isinstance(record.value.get("text"), str):
        raise Fatal("the ticket has no text")
    messages = [{"role": "system", "content": TASK}, {"role": "user", "content": record.value["text"][:TEXT_MAX]}]
    body = {"model": os.environ["LLM_MODEL"], "messages": messages, "max_tokens": ANSWER_MAX, "temperature": 0}
    async with turn:
        check_budget(time.monotonic())
        await asyncio.sleep(PAUSE_S)
    async with session.post(f"{os.environ['LLM_URL']}/chat/completions", json=body) as response:
        if response.status == 429:
            wait = response.headers.get("Retry-After", "")
            raise RetryAfter(float(wait) if wait.isdigit() else 60.0)
        if response.status in (400, 413, 422):
            raise Fatal(f"the model's endpoint refuses the ticket: {response.status}")
        response.raise_for_status()
        answer = await response.json()
    spent.append((time.monotonic(), answer["usage"]["total_tokens"]))
    queue = answer["choices"][0]["message"]["content"].strip().lower().rstrip(".")
    if queue not in QUEUES:
        raise Fatal("the model's answer is none of the queues")
    return Produce(
        OUTPUT, json.dumps({"queue": queue}), key=f"{record.topic}-{EPOCH}-{record.partition}-{record.offset}"
    )


def check_budget(now: float) -> None:
    """Raise RetryAfter, with the time until half of the budget is free, if this hour's tokens are spent.

    The budget often allows one more call within seconds. But if all waiting tickets were retried for that call, they
    would use up their attempts.
    """
    while spent and spent[0][0] < now - 3600:
        del spent[0]
    used = sum(tokens for _, tokens in spent)
    if used < TOKENS_PER_HOUR:
        return
    for called_at, tokens in spent:
        used -= tokens
        if used <= TOKENS_PER_HOUR / 2:
            raise RetryAfter(called_at + 3600 - now)
