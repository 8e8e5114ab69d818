"""Tokens: one fetch for all who ask, renewed in time, kept while the endpoint is away, and never asked for hotly."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from fleet_consumer.net import AuthenticationFailed, NetError, OAuthToken, TokenSource, TokenUnavailable
from fleet_consumer.net.tokens import ATTEMPTS_MAX, REJECTED_PAUSE_S, RETRY_FIRST_S, STUCK_S, TokenRequest
from tests.support.clock import StillClock
from tests.support.waiting import eventually

PATIENCE_S = 10.0
LIFE_S = 100.0


class Provider:
    """Numbers its tokens; `failure` is raised instead, `gate` is waited for first."""

    def __init__(self, clock: StillClock) -> None:
        self.given = 0
        self.failure: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self._clock = clock

    def __call__(self) -> OAuthToken:
        self.given += 1
        number = self.given
        assert self.gate.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        return OAuthToken(value=f"token-{number}", expires_at=self._clock.wall() + LIFE_S)


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def provider(clock: StillClock) -> Provider:
    return Provider(clock)


@pytest.fixture
def source(provider: Provider, clock: StillClock) -> TokenSource:
    return TokenSource(provider, clock)


@contextmanager
def held(provider: Provider) -> Iterator[None]:
    """While this lasts, the endpoint does not answer."""
    provider.gate.clear()
    try:
        yield
    finally:
        provider.gate.set()


def outcome(source: TokenSource) -> str:
    """The token's text, or the error's."""
    try:
        return source.wait(PATIENCE_S).value
    except NetError as error:
        return str(error)


def done(request: TokenRequest) -> Callable[[], bool]:
    return lambda: request.done


def test_concurrent_requests_get_the_same_token_without_waiting(source: TokenSource, provider: Provider) -> None:
    told: list[int] = []
    with held(provider):
        requests = [source.request(lambda: told.append(1)) for _ in range(5)]
        assert not any(request.done for request in requests)
        with pytest.raises(TokenUnavailable, match=r"within 0\.01 s"):
            source.wait(0.01)
    eventually(lambda: len(told) == 5, timeout_s=PATIENCE_S, what="all to be told")
    assert {id(request.result) for request in requests} == {id(requests[0].result)}
    assert outcome(source) == "token-1"
    assert provider.given == 1


def test_token_is_replaced_after_four_fifths_of_its_life(source: TokenSource, clock: StillClock) -> None:
    assert outcome(source) == "token-1"
    clock.now += 0.79 * LIFE_S
    assert outcome(source) == "token-1"
    clock.now += 0.02 * LIFE_S
    assert outcome(source) == "token-2"


def test_old_token_serves_while_a_new_one_cannot_be_had(
    source: TokenSource, provider: Provider, clock: StillClock
) -> None:
    assert outcome(source) == "token-1"
    provider.failure = TokenUnavailable("the endpoint is away")
    clock.now += 0.85 * LIFE_S
    assert outcome(source) == "token-1"
    clock.now += 0.06 * LIFE_S  # less than a tenth of its life is left
    assert outcome(source) == "the endpoint is away"
    provider.failure = None
    clock.now += 60
    assert outcome(source).startswith("token-")


def test_failing_endpoint_is_asked_ever_more_rarely(source: TokenSource, provider: Provider, clock: StillClock) -> None:
    provider.failure = AuthenticationFailed("invalid_client")
    for _ in range(1000):
        assert outcome(source) == "invalid_client"
        clock.now += 0.1
    assert 5 <= provider.given <= 9  # 1, 2, 4, 8, 16, 30, 30 seconds apart
    provider.failure = None
    clock.now += 30
    assert outcome(source).startswith("token-")


def test_failure_is_forgotten_with_the_next_success(source: TokenSource, provider: Provider, clock: StillClock) -> None:
    provider.failure = TokenUnavailable("away")
    for _ in range(4):
        outcome(source)
        clock.now += 40
    provider.failure = None
    assert outcome(source) == "token-5"
    provider.failure = TokenUnavailable("away again")
    clock.now += LIFE_S
    assert outcome(source) == "away again"
    provider.failure = None
    clock.now += RETRY_FIRST_S
    assert outcome(source) == "token-7"


def test_rejected_token_is_not_used_again(source: TokenSource, provider: Provider, clock: StillClock) -> None:
    refused = source.wait(PATIENCE_S)
    source.reject(refused, AuthenticationFailed("the broker refuses it"))
    assert outcome(source) == "the broker refuses it"
    assert provider.given == 1
    clock.now += REJECTED_PAUSE_S
    assert outcome(source) == "token-2"
    source.reject(refused, AuthenticationFailed("late refusal of the first"))
    assert outcome(source) == "token-2"


def test_attempt_that_never_ends_is_given_up_and_only_a_few_may_hang_at_a_time(
    source: TokenSource, provider: Provider, clock: StillClock
) -> None:
    """One more thread each half minute would fill a process whose identity provider hangs."""
    with held(provider):
        attempts = [source.request(lambda: None)]
        for _ in range(ATTEMPTS_MAX - 1):
            clock.now += STUCK_S + 1
            attempts.append(source.request(lambda: None))
        eventually(lambda: provider.given == ATTEMPTS_MAX, timeout_s=PATIENCE_S, what="another attempt each time")
        clock.now += STUCK_S + 1
        late = source.request(lambda: None)
        assert late.done
        assert "have not finished" in str(late.result)
    for attempt in attempts:
        eventually(done(attempt), timeout_s=PATIENCE_S, what="all attempts to end")
    assert outcome(source).startswith("token-")


def test_attempt_that_never_ends_leaves_the_token_before_in_use(
    source: TokenSource, provider: Provider, clock: StillClock
) -> None:
    assert outcome(source) == "token-1"
    clock.now += 0.5 * LIFE_S
    with held(provider):
        clock.now += 0.31 * LIFE_S
        attempt = source.request(lambda: None)
        clock.now += 0.01 * LIFE_S
        assert source.request(lambda: None) is attempt
        for _ in range(ATTEMPTS_MAX):
            attempt = source.request(lambda: None)
            attempt.started_at -= STUCK_S + 1
        assert outcome(source) == "token-1"
    eventually(done(attempt), timeout_s=PATIENCE_S, what="the attempt to end")


def test_callback_that_would_end_its_thread_is_reported_and_asked_again(provider: Provider, clock: StillClock) -> None:
    def ends() -> OAuthToken:
        if not provider.given:
            provider.given += 1
            raise SystemExit(3)
        return provider()

    source = TokenSource(ends, clock)
    assert outcome(source) == "the token callback failed: SystemExit: 3"
    clock.now += RETRY_FIRST_S
    assert outcome(source) == "token-2"


def test_error_of_a_callback_is_reported_by_name(source: TokenSource, provider: Provider) -> None:
    provider.failure = KeyError("vault")
    with pytest.raises(TokenUnavailable, match=r"the token callback failed: KeyError: 'vault'"):
        source.wait(PATIENCE_S)


def test_expired_token_is_refused(clock: StillClock) -> None:
    source = TokenSource(lambda: OAuthToken(value="t", expires_at=clock.wall() - 1), clock)
    with pytest.raises(TokenUnavailable, match="clocks"):
        source.wait(PATIENCE_S)


def test_many_threads_with_one_source_all_get_their_answer() -> None:
    """Network clients and librdkafka's threads share a source: no request may be lost, whatever they do meanwhile."""
    clock, failing = StillClock(), itertools.count()

    def get() -> OAuthToken:
        clock.now += 50
        if next(failing) % 3 == 0:
            raise TokenUnavailable("now and then")
        return OAuthToken(value="t", expires_at=clock.wall() + LIFE_S)

    source = TokenSource(get, clock)
    answered: list[str] = []

    def use() -> None:
        for number in range(100):
            clock.now += 0.3
            answered.append(outcome(source))
            if number % 7 == 0:
                with suppress(NetError):  # the source may have none just now
                    source.reject(source.wait(PATIENCE_S), AuthenticationFailed("refused"))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S * 3)
        assert not thread.is_alive()
    assert len(answered) == 800
    assert "t" in answered
    assert not [each for each in answered if "within" in each]
