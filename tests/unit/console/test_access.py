"""Tokens and permissions: the API server decides, its answers expire, and nothing grows without a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP, TOKEN_REVIEW, JsonObject, Kind
from fleet_operator.clients.kube import KubeUnavailableError
from fleet_operator.console import access as access_module
from fleet_operator.console import sessions as sessions_module
from fleet_operator.console.access import (
    ACCESS_SECONDS,
    NAMESPACES_MAX,
    QUESTIONS_MAX,
    REFUSAL_SECONDS,
    REFUSALS_MAX,
    TOKEN_SECONDS,
    Access,
    TooManyAttemptsError,
    Viewer,
)
from fleet_operator.console.sessions import SESSION_SECONDS, USER_SESSIONS_MAX, Sessions
from tests.support.clock import StillClock
from tests.unit.console.site import Reviews

ANN = Viewer("ann", groups=("people",))


def run(reviews: Reviews, test: Callable[[Access, StillClock], Any]) -> None:
    async def main() -> None:
        clock = StillClock()
        await test(Access(reviews, clock), clock)

    asyncio.run(main())


def test_revoked_token_counts_for_at_most_the_cache_time() -> None:
    reviews = Reviews()

    async def test(access: Access, clock: StillClock) -> None:
        assert await access.viewer_of("token-ann") == ANN
        reviews.revoked.add("token-ann")
        clock.now += TOKEN_SECONDS - 1
        assert await access.viewer_of("token-ann") == ANN
        clock.now += 1
        assert await access.viewer_of("token-ann") is None
        assert len(reviews.asked) == 2

    run(reviews, test)


def test_withdrawn_permission_counts_for_at_most_the_cache_time() -> None:
    reviews = Reviews(("ann", "shop"))

    async def test(access: Access, clock: StillClock) -> None:
        assert await access.may(ANN, "get", CONSUMER_GROUP, "shop")
        assert not await access.may(ANN, "get", CONSUMER_GROUP, "bank")
        assert not await access.may(Viewer("bob"), "get", CONSUMER_GROUP, "shop")
        reviews.rights.clear()
        assert await access.may(ANN, "get", CONSUMER_GROUP, "shop")
        clock.now += ACCESS_SECONDS
        assert not await access.may(ANN, "get", CONSUMER_GROUP, "shop")

    run(reviews, test)


def test_permission_in_one_namespace_is_none_in_all() -> None:
    async def test(access: Access, _: StillClock) -> None:
        assert await access.readable(ANN, CONSUMER_GROUP, ["bank", "shop", "shop"]) == frozenset({"shop"})
        assert await access.readable(Viewer("root"), CONSUMER_GROUP, ["bank"]) is None

    run(Reviews(("ann", "shop"), ("root", "")), test)


def test_namespaces_that_are_checked_are_bounded() -> None:
    reviews = Reviews()

    async def test(access: Access, _: StillClock) -> None:
        await access.readable(ANN, CONSUMER_GROUP, [f"n{number}" for number in range(10 * NAMESPACES_MAX)])
        assert len(reviews.asked) == NAMESPACES_MAX + 1

    run(reviews, test)


def test_whoever_asks_at_the_same_time_shares_one_review() -> None:
    reviews = Reviews(("ann", "shop"))

    async def test(access: Access, _: StillClock) -> None:
        answers = await asyncio.gather(*(access.may(ANN, "get", CONSUMER_GROUP, "shop") for _ in range(50)))
        assert (answers, len(reviews.asked)) == ([True] * 50, 1)

    run(reviews, test)


def test_nobody_is_let_in_while_the_api_server_does_not_answer() -> None:
    reviews = Reviews(("ann", "shop"))

    async def test(access: Access, _: StillClock) -> None:
        reviews.broken = True
        for ask in (lambda: access.viewer_of("token-ann"), lambda: access.may(ANN, "get", CONSUMER_GROUP, "shop")):
            with pytest.raises(KubeUnavailableError):
                await ask()
        reviews.broken = False
        assert await access.may(ANN, "get", CONSUMER_GROUP, "shop"), "a failure is not kept"

    run(reviews, test)


@pytest.mark.parametrize("token", ["", "x" * 16_385, "token-ann\r\nX: y", "token-é"])
def test_strings_that_cannot_be_tokens_are_refused_without_a_review(token: str) -> None:
    reviews = Reviews()

    async def test(access: Access, _: StillClock) -> None:
        assert await access.viewer_of(token) is None
        assert reviews.asked == []

    run(reviews, test)


def test_guesses_of_tokens_are_slowed_down_and_known_people_stay() -> None:
    reviews = Reviews()

    async def test(access: Access, clock: StillClock) -> None:
        await access.viewer_of("token-ann")
        for number in range(REFUSALS_MAX):
            assert await access.viewer_of(f"guess-{number}") is None
        with pytest.raises(TooManyAttemptsError):
            await access.viewer_of("guess-again")
        assert await access.viewer_of("token-ann") == ANN
        assert len(reviews.asked) == REFUSALS_MAX + 1
        clock.now += REFUSAL_SECONDS
        assert await access.viewer_of("token-bob") is not None

    run(reviews, test)


def test_guesses_sign_nobody_out_when_tokens_are_reviewed_again() -> None:
    reviews = Reviews()

    async def test(access: Access, clock: StillClock) -> None:
        await access.viewer_of("token-ann")
        await access.viewer_of("token-bob")
        clock.now += TOKEN_SECONDS
        for number in range(REFUSALS_MAX):
            await access.viewer_of(f"guess-{number}")
        assert await access.viewer_of("token-ann") == ANN
        reviews.revoked.add("token-bob")
        assert await access.viewer_of("token-bob") is None
        clock.now += TOKEN_SECONDS
        for number in range(REFUSALS_MAX):
            await access.viewer_of(f"other-guess-{number}")
        with pytest.raises(TooManyAttemptsError):
            await access.viewer_of("token-bob")  # it is unknown since it was refused

    run(reviews, test)


def test_guesses_at_the_same_time_do_not_exceed_the_limit() -> None:
    reviews = Reviews(("ann", "shop"))

    async def test(access: Access, _: StillClock) -> None:
        guesses = (access.viewer_of(f"guess-{number}") for number in range(10 * REFUSALS_MAX))
        answers = await asyncio.gather(*guesses, return_exceptions=True)
        assert (len(reviews.asked), answers.count(None)) == (REFUSALS_MAX, REFUSALS_MAX)
        assert all(answer is None or isinstance(answer, TooManyAttemptsError) for answer in answers)

    run(reviews, test)


def test_guesses_that_wait_for_the_api_server_hold_up_no_question_about_a_right() -> None:
    blocked, answer = asyncio.Event(), Reviews(("ann", "shop"))

    async def review(kind: Kind, spec: JsonObject) -> JsonObject:
        if kind is TOKEN_REVIEW:
            await blocked.wait()
        return await answer(kind, spec)

    async def main() -> None:
        access = Access(review, StillClock())
        guesses = [asyncio.create_task(access.viewer_of(f"guess-{number}")) for number in range(20)]
        assert await asyncio.wait_for(access.may(ANN, "get", CONSUMER_GROUP, "shop"), 30)
        blocked.set()
        await asyncio.gather(*guesses)

    asyncio.run(main())


def test_answers_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "ANSWERS_MAX", 20)

    async def test(access: Access, _: StillClock) -> None:
        for number in range(100):
            await access.may(ANN, "get", CONSUMER_GROUP, f"n{number}")
        assert len(access._answers) == 20

    run(Reviews(), test)


@pytest.mark.parametrize("namespace", ["x" * 64, "x" * 8192, "A", "a_b", "-a", "a-", "a.b", "a\n", "é"])
def test_namespaces_that_cannot_exist_are_refused_without_a_review(namespace: str) -> None:
    reviews = Reviews(("ann", ""))

    async def test(access: Access, _: StillClock) -> None:
        assert not await access.may(ANN, "get", CONSUMER_GROUP, namespace)
        assert (reviews.asked, len(access._answers)) == ([], 0)

    run(reviews, test)


def test_answers_that_have_expired_leave_the_memory() -> None:
    async def test(access: Access, clock: StillClock) -> None:
        for number in range(100):
            await access.may(ANN, "get", CONSUMER_GROUP, f"n{number}")
        clock.now += ACCESS_SECONDS
        await access.may(ANN, "get", CONSUMER_GROUP, "shop")
        assert len(access._answers) == 1

    run(Reviews(), test)


def test_one_viewer_cannot_ask_without_limit_and_others_are_not_affected() -> None:
    reviews = Reviews(("bob", "shop"))

    async def test(access: Access, clock: StillClock) -> None:
        for number in range(QUESTIONS_MAX):
            await access.may(ANN, "get", CONSUMER_GROUP, f"n{number}")
        with pytest.raises(TooManyAttemptsError):
            await access.may(ANN, "get", CONSUMER_GROUP, "again")
        assert not await access.may(ANN, "get", CONSUMER_GROUP, "n0"), "kept answers need no review"
        assert len(reviews.asked) == QUESTIONS_MAX
        assert await access.may(Viewer("bob"), "get", CONSUMER_GROUP, "shop")
        clock.now += ACCESS_SECONDS
        await access.may(ANN, "get", CONSUMER_GROUP, "again")

    run(reviews, test)


def test_sessions_expire_end_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "SESSIONS_MAX", 200)
    clock = StillClock()
    sessions = Sessions(clock)
    first, second = sessions.begin("t1", "ann"), sessions.begin("t2", "ann")
    assert (sessions.token_of(first), sessions.token_of(second), sessions.token_of("x")) == ("t1", "t2", None)
    sessions.revoke(second)
    assert sessions.token_of(second) is None
    values = [sessions.begin(f"t{number}", f"user-{number}") for number in range(200)]
    assert (len(sessions), sessions.token_of(first)) == (200, None)
    assert len(set(values)) == 200
    clock.now += SESSION_SECONDS
    assert sessions.token_of(values[-1]) is None
    sessions.begin("later", "ann")
    assert len(sessions) == 1


def test_one_user_cannot_end_the_sessions_of_others() -> None:
    sessions = Sessions(StillClock())
    ann = sessions.begin("t", "ann")
    values = [sessions.begin(f"t{number}", "bob") for number in range(200)]
    assert (sessions.token_of(ann), len(sessions)) == ("t", USER_SESSIONS_MAX + 1)
    assert (sessions.token_of(values[0]), sessions.token_of(values[-1])) == (None, "t199")
