"""The HTTP client of all feeds: declared, paced per host, conditional, patient, and bounded in size and time."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urljoin, urlsplit

import httpx
import structlog

from producers.errors import FetchError, FetchErrorKind
from producers.pacing import PROCESS_PACER, HostPacer, Sleep
from schemas.errors import ConfigError

log = structlog.get_logger()

ATTEMPTS = 5
BACKOFF_SECONDS = 0.5
"""Wait before the second attempt; it doubles with each one, and a random half of it is taken off."""
BACKOFF_MOST_SECONDS = 30.0
RETRY_AFTER_MOST_SECONDS = 600.0
"""Bound on what a host can make us wait with ``Retry-After``."""
MAX_BYTES = 256 * 1024 * 1024
REDIRECTS = 5
ERROR_BODY_BYTES = 16 * 1024
"""How much of an error page is read: enough to recognise it."""
MAX_SECONDS = 300.0
"""Longest time for one response from first byte to last; a host that drips bytes never trips a read time-out."""

NOT_MODIFIED = 304
_REDIRECT = frozenset({301, 302, 303, 307, 308})
_GONE = frozenset({404, 410})
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTACT = re.compile(r"[^\s@]+@[^\s@]+\.[^\s@]+|https?://\S+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Validators:
    """What makes the next request conditional: the last answer's ``ETag`` and ``Last-Modified``, as they came."""

    etag: str = ""
    last_modified: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """One complete answer.

    Args:
        url: where it came from, redirects followed.
        status: 200, or 304 when nothing changed since ``validators``.
        headers: names in lower case.
        body: all of it; empty for 304.
        validators: for the next request.
        received_at_ns: when the last byte was here.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    validators: Validators
    received_at_ns: int

    @property
    def modified(self) -> bool:
        """Whether there is anything new."""
        return self.status != NOT_MODIFIED


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A host's answer that asks us to keep away.

    Args:
        seconds: how long nobody in the process asks that host for anything.
        reason: for the log and the error.
    """

    seconds: float
    reason: str


Judge = Callable[[int, bytes], Refusal | None]
"""Looks at a status and the start of a body; says whether it is a refusal. Called for every answer with a body."""


def no_refusal(_: int, __: bytes) -> Refusal | None:
    """Take no answer for a refusal."""
    return None


def checked_user_agent(user_agent: str, setting: str) -> str:
    """Return a User-Agent that declares who is asking.

    Raises:
        ConfigError: it is missing, names no contact, or cannot be a header.
    """
    value = user_agent.strip()
    if not value:
        raise ConfigError(setting, "say who is asking, for example 'Example Capital feeds@example.com'")
    if not value.isascii() or not value.isprintable():
        raise ConfigError(setting, "printable ASCII characters only: it goes into an HTTP header")
    if not _CONTACT.search(value):
        raise ConfigError(setting, "name a contact in it, an e-mail address or a web page")
    return value


class HttpClient:
    """Fetches whole resources; an async context manager.

    Args:
        user_agent: who is asking, with a contact (`checked_user_agent`).
        setting: dotted name of the setting that ``user_agent`` comes from, for errors.
        per_second: requests per second and host.
        judge: recognises the pages by which a host asks us to keep away.
        pacer: shared by the process unless a test gives another.
        timeout_seconds: for connecting, and between two pieces of a response.
        attempts: per request; only failures that another attempt can mend are repeated.
        max_bytes: largest body, after decompression.
        sleep: waits between attempts.
        jitter: random number in [0, 1).
        now_ns: wall clock, nanoseconds since the epoch.

    Raises:
        ConfigError: the User-Agent declares nobody.
    """

    def __init__(
        self,
        *,
        user_agent: str,
        setting: str,
        per_second: float = 8.0,
        judge: Judge = no_refusal,
        pacer: HostPacer = PROCESS_PACER,
        timeout_seconds: float = 20.0,
        attempts: int = ATTEMPTS,
        max_bytes: int = MAX_BYTES,
        sleep: Sleep = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._per_second = per_second
        self._judge = judge
        self._pacer = pacer
        self._attempts = attempts
        self._max_bytes = max_bytes
        self._sleep = sleep
        self._jitter = jitter
        self._now_ns = now_ns
        self._client = httpx.AsyncClient(
            headers={"User-Agent": checked_user_agent(user_agent, setting), "Accept-Encoding": "gzip, deflate"},
            timeout=timeout_seconds,
            follow_redirects=False,  # every hop is a request that the pacer counts
            trust_env=True,
        )

    async def __aenter__(self) -> Self:
        """Open the connection pool."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection pool."""
        await self._client.aclose()

    async def get(
        self,
        url: str,
        *,
        validators: Validators | None = None,
        attempts: int | None = None,
        max_bytes: int | None = None,
    ) -> Response:
        """Fetch a resource, waiting for the host's pace and its pauses.

        A refusal pauses the host for the whole process and counts as an attempt; the next one waits the pause out.

        Args:
            url: ``http`` or ``https``.
            validators: of the last answer; then a 304 is a good answer.
            attempts: instead of the client's.
            max_bytes: instead of the client's.

        Raises:
            FetchError: with the kind, after the last attempt or at once where another would change nothing.
        """
        most = attempts or self._attempts
        for attempt in range(1, most + 1):
            try:
                return await self._attempt(url, validators or Validators(), max_bytes or self._max_bytes)
            except _TransientError as failed:
                if attempt == most:
                    raise failed.error from None
                wait = failed.wait if failed.wait is not None else self._backoff(attempt)
                log.info("fetch_retry", url=url, attempt=attempt, wait_s=round(wait, 2), reason=failed.error.reason)
                if wait:
                    await self._sleep(wait)
        raise AssertionError("attempts is at least 1")

    async def _attempt(self, url: str, validators: Validators, max_bytes: int) -> Response:
        """Make one attempt, following redirects."""
        asked = url
        for _ in range(REDIRECTS + 1):
            host = _host_of(asked)
            await self._pacer.turn(host, self._per_second)
            try:
                async with asyncio.timeout(MAX_SECONDS):
                    answer = await self._request(asked, validators, max_bytes)
            except (httpx.TransportError, httpx.DecodingError, TimeoutError) as error:
                reason = f"{type(error).__name__}: {error}".rstrip(": ")
                raise _TransientError(FetchError(FetchErrorKind.UNAVAILABLE, url, reason)) from None
            except httpx.InvalidURL as error:
                raise FetchError(FetchErrorKind.UNEXPECTED, url, str(error)) from None
            if isinstance(answer, Response):
                return answer
            asked = urljoin(asked, answer)
        raise FetchError(FetchErrorKind.UNEXPECTED, url, f"more than {REDIRECTS} redirects")

    async def _request(self, url: str, validators: Validators, max_bytes: int) -> Response | str:
        """Send one request; returns its answer, or the address that it redirects to."""
        headers = {}
        if validators.etag:
            headers["If-None-Match"] = validators.etag
        if validators.last_modified:
            headers["If-Modified-Since"] = validators.last_modified
        async with self._client.stream("GET", url, headers=headers) as answer:
            if answer.status_code in _REDIRECT and "location" in answer.headers:
                return str(answer.headers["location"])
            if answer.status_code == NOT_MODIFIED:
                return self._response(url, answer, b"", validators)
            if answer.status_code != httpx.codes.OK:
                body = await _read(answer, url, ERROR_BODY_BYTES, cut=True)
                raise self._failure(url, answer, body)
            body = await _read(answer, url, max_bytes)
            if refusal := self._judge(answer.status_code, body[:ERROR_BODY_BYTES]):
                raise self._refused(url, answer.status_code, refusal, body)
            return self._response(url, answer, body, Validators())

    def _response(self, url: str, answer: httpx.Response, body: bytes, old: Validators) -> Response:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        new = Validators(
            etag=headers.get("etag", old.etag), last_modified=headers.get("last-modified", old.last_modified)
        )
        return Response(
            url=url,
            status=answer.status_code,
            headers=headers,
            body=body,
            validators=new,
            received_at_ns=self._now_ns(),
        )

    def _failure(self, url: str, answer: httpx.Response, body: bytes) -> Exception:
        status = answer.status_code
        if refusal := self._judge(status, body):
            return self._refused(url, status, refusal, body)
        reason = f"HTTP {status}"
        if status in _GONE:
            return FetchError(FetchErrorKind.MISSING, url, reason, status=status, body=body)
        if status in _TRANSIENT:
            wait = _retry_after(answer.headers.get("retry-after", ""))
            error = FetchError(FetchErrorKind.UNAVAILABLE, url, reason, status=status, body=body)
            return _TransientError(error, wait=wait)
        return FetchError(FetchErrorKind.UNEXPECTED, url, reason, status=status, body=body)

    def _refused(self, url: str, status: int, refusal: Refusal, body: bytes) -> Exception:
        host = _host_of(url)
        self._pacer.pause(host, refusal.seconds)
        log.warning("host_refuses", host=host, status=status, pause_s=refusal.seconds, reason=refusal.reason)
        error = FetchError(FetchErrorKind.REFUSED, url, refusal.reason, status=status, body=body[:ERROR_BODY_BYTES])
        return _TransientError(error, wait=0.0)  # the pacer does the waiting, for every task of the process

    def _backoff(self, attempt: int) -> float:
        full = min(BACKOFF_SECONDS * 2 ** (attempt - 1), BACKOFF_MOST_SECONDS)
        return float(full * (1 - self._jitter() / 2))


class _TransientError(Exception):
    """Another attempt may do better, after ``wait`` seconds (None: the usual backoff)."""

    def __init__(self, error: FetchError, *, wait: float | None = None) -> None:
        self.error = error
        self.wait = wait
        super().__init__(str(error))


def _host_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2].lower()
    except ValueError as error:
        raise FetchError(FetchErrorKind.UNEXPECTED, url, str(error)) from None
    if parts.scheme not in ("http", "https") or not host:
        raise FetchError(FetchErrorKind.UNEXPECTED, url, "not an http or https address")
    return host


async def _read(answer: httpx.Response, url: str, max_bytes: int, *, cut: bool = False) -> bytes:
    """Read the body up to ``max_bytes`` decompressed bytes; past that it is an error, or cut."""
    pieces: list[bytes] = []
    size = 0
    async for piece in answer.aiter_bytes():
        size += len(piece)
        if size > max_bytes:
            if cut:
                pieces.append(piece[: max_bytes - size])
                break
            raise FetchError(FetchErrorKind.TOO_LARGE, url, f"more than {max_bytes} bytes", status=answer.status_code)
        pieces.append(piece)
    return b"".join(pieces)


def _retry_after(value: str) -> float | None:
    """Seconds of a ``Retry-After`` header; None where there is none, or a date, which needs the host's clock."""
    value = value.strip()
    return min(float(value), RETRY_AFTER_MOST_SECONDS) if value.isascii() and value.isdigit() else None
