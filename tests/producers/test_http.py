from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from ops.bench.edgar_stand_in import EdgarStandIn, Reply
from producers.errors import FetchError, FetchErrorKind
from producers.http import BACKOFF_SECONDS, HttpClient, Refusal, checked_user_agent
from producers.pacing import HostPacer
from schemas.errors import ConfigError

AGENT = "Tapewire tests tests@example.com"


class Naps:
    """Takes the place of sleeping and notes for how long it would have been."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        """Note it."""
        self.seconds.append(seconds)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[EdgarStandIn]:
    """A server on loopback."""
    async with EdgarStandIn() as running:
        yield running


def _client(naps: Naps, **options: Any) -> HttpClient:
    pacer = HostPacer(sleep=naps, clock=lambda: float(len(naps.seconds)) * 1_000.0)
    values: dict[str, Any] = {"user_agent": AGENT, "setting": "edgar.user_agent", "pacer": pacer, "sleep": naps}
    return HttpClient(**(values | {"jitter": lambda: 0.0} | options))


@pytest.mark.parametrize("agent", ["", "   ", "curl/8.0", "Example \u00dcber x@example.com", "A\nB x@example.com"])
def test_user_agent_must_declare_somebody(agent: str) -> None:
    """A missing, anonymous or impossible User-Agent is a configuration error that names the setting."""
    with pytest.raises(ConfigError) as caught:
        checked_user_agent(agent, "edgar.user_agent")
    assert caught.value.setting == "edgar.user_agent"


async def test_declares_itself(server: EdgarStandIn) -> None:
    """Every request carries the configured User-Agent and takes compressed answers."""
    server.script("/a", Reply(body=b"hello"))
    async with _client(Naps()) as http:
        response = await http.get(f"{server.url}/a")
    assert (response.status, response.body, response.modified) == (200, b"hello", True)
    assert server.requests[0].headers["user-agent"] == AGENT
    assert "gzip" in server.requests[0].headers["accept-encoding"]


async def test_conditional_requests(server: EdgarStandIn) -> None:
    """The validators of one answer make the next request conditional, and 304 means nothing new."""
    server.script("/a", Reply(body=b"x", headers={"ETag": '"1"', "Last-Modified": "yesterday"}), Reply(status=304))
    async with _client(Naps()) as http:
        first = await http.get(f"{server.url}/a")
        second = await http.get(f"{server.url}/a", validators=first.validators)
    assert not second.modified
    assert second.validators == first.validators
    assert server.requests[1].headers["if-none-match"] == '"1"'
    assert server.requests[1].headers["if-modified-since"] == "yesterday"


async def test_transient_failures_are_repeated_with_backoff(server: EdgarStandIn) -> None:
    """503, a cut body and a dropped connection are tried again, each wait twice the last one."""
    server.script("/a", Reply(status=503), Reply(body=b"half of it", cut=4), Reply(cut=0, body=b"x"), Reply(body=b"ok"))
    naps = Naps()
    async with _client(naps) as http:
        assert (await http.get(f"{server.url}/a")).body == b"ok"
    assert naps.seconds == [BACKOFF_SECONDS, BACKOFF_SECONDS * 2, BACKOFF_SECONDS * 4]


async def test_retry_after_is_kept_within_bounds(server: EdgarStandIn) -> None:
    """A host's own wait is used, up to ten minutes."""
    server.script(
        "/a", Reply(status=503, headers={"Retry-After": "7"}), Reply(status=503, headers={"Retry-After": "99999"})
    )
    server.script("/a", Reply(body=b"ok"))
    naps = Naps()
    async with _client(naps) as http:
        await http.get(f"{server.url}/a")
    assert naps.seconds == [7.0, 600.0]


async def test_last_failure_is_typed(server: EdgarStandIn) -> None:
    """After the last attempt the error says kind, status and start of the body."""
    server.script("/a", *[Reply(status=503, body=b"<html>busy</html>")] * 2)
    async with _client(Naps()) as http:
        with pytest.raises(FetchError) as caught:
            await http.get(f"{server.url}/a", attempts=2)
    assert (caught.value.kind, caught.value.status) == (FetchErrorKind.UNAVAILABLE, 503)
    assert caught.value.body == b"<html>busy</html>"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("status", "kind"), [(404, "missing"), (410, "missing"), (401, "unexpected"), (400, "unexpected")]
)
async def test_what_no_attempt_can_mend_is_not_repeated(server: EdgarStandIn, status: int, kind: str) -> None:
    """A missing page or a wrong request fails at once."""
    server.script("/a", Reply(status=status))
    async with _client(Naps()) as http:
        with pytest.raises(FetchError) as caught:
            await http.get(f"{server.url}/a")
    assert caught.value.kind.value == kind
    assert len(server.requests) == 1


async def test_refusal_pauses_the_host(server: EdgarStandIn) -> None:
    """A refusal leaves the host alone for the whole pause before the next attempt."""
    server.script("/a", Reply(status=403, body=b"go away"), Reply(body=b"ok"))
    naps = Naps()
    refusal = Refusal(seconds=600.0, reason="asked to")
    async with _client(naps, judge=lambda status, body: refusal if body == b"go away" else None) as http:
        assert (await http.get(f"{server.url}/a")).body == b"ok"
    assert naps.seconds == [600.0]


async def test_refusal_with_status_200(server: EdgarStandIn) -> None:
    """A refusal that calls itself success is one all the same."""
    server.script("/a", Reply(body=b"go away"))
    async with _client(Naps(), judge=lambda _, body: Refusal(seconds=1, reason="asked to")) as http:
        with pytest.raises(FetchError) as caught:
            await http.get(f"{server.url}/a", attempts=1)
    assert caught.value.kind is FetchErrorKind.REFUSED


async def test_redirects_are_followed_within_bounds(server: EdgarStandIn) -> None:
    """A redirect is followed, a circle of them is an error, and none leads away from http."""
    server.script("/a", Reply(status=302, headers={"Location": "/b"}))
    server.script("/b", Reply(body=b"there"))
    server.script("/loop", *[Reply(status=302, headers={"Location": "/loop"})] * 10)
    server.script("/file", Reply(status=302, headers={"Location": "file:///etc/passwd"}))
    async with _client(Naps()) as http:
        assert (await http.get(f"{server.url}/a")).body == b"there"
        for path in ("loop", "file"):
            with pytest.raises(FetchError) as caught:
                await http.get(f"{server.url}/{path}")
            assert caught.value.kind is FetchErrorKind.UNEXPECTED


async def test_size_is_bounded(server: EdgarStandIn) -> None:
    """A body over the bound is given up while it comes, and not tried again."""
    server.script("/a", Reply(body=b"x" * 5_000))
    async with _client(Naps()) as http:
        with pytest.raises(FetchError) as caught:
            await http.get(f"{server.url}/a", max_bytes=1_000)
    assert caught.value.kind is FetchErrorKind.TOO_LARGE
    assert len(server.requests) == 1


async def test_slow_host_is_given_up(server: EdgarStandIn) -> None:
    """A host that does not answer in time is unavailable."""
    server.script("/a", Reply(body=b"late", delay=30.0))
    async with _client(Naps(), timeout_seconds=0.2) as http:
        with pytest.raises(FetchError) as caught:
            await http.get(f"{server.url}/a", attempts=1)
    assert caught.value.kind is FetchErrorKind.UNAVAILABLE


@pytest.mark.parametrize("url", ["ftp://example.com/a", "nonsense", "http://[bad", "file:///etc/passwd"])
async def test_other_addresses_are_refused(url: str) -> None:
    """Only http and https are asked."""
    async with _client(Naps()) as http:
        with pytest.raises(FetchError) as caught:
            await http.get(url)
    assert caught.value.kind is FetchErrorKind.UNEXPECTED
