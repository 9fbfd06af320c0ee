"""A local server that behaves as SEC's does, with filings of our own making: for measurements and tests."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape
from zoneinfo import ZoneInfo

EASTERN = ZoneInfo("America/New_York")
UNAVAILABLE_PAGE = b"""<!DOCTYPE html><html><head><title>SEC.gov | File Unavailable</title></head>
<body><h1>This page is temporarily unavailable.</h1><p>SEC.gov is undergoing maintenance.</p></body></html>"""
RATE_PAGE = b"""<!DOCTYPE html><html><head><title>SEC.gov | Request Rate Threshold Exceeded</title></head>
<body><h1>You have exceeded the SEC's Traffic Limit</h1></body></html>"""
UNDECLARED_PAGE = b"""<!DOCTYPE html><html><head><title>SEC.gov | Your Request Originates from an Undeclared Automated
Tool</title></head><body><p>Please declare your traffic by updating your user agent.</p></body></html>"""

_SUBMISSION = re.compile(r"/Archives/edgar/data/\d+/\d{18}/(\d{10}-\d{2}-\d{6})\.txt")


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer.

    Args:
        status: HTTP status.
        body: all of it.
        headers: besides the length.
        delay: seconds before the first byte.
        cut: bytes of the body after which the connection is dropped; None sends all.
        drip: seconds between pieces of the body; 0 sends it at once.
        die: called before anything is sent.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: int | None = None
    drip: float = 0.0
    die: Callable[[], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Party:
    """Under whom a filing is listed."""

    cik: str
    name: str
    role: str = "Filer"


@dataclass(frozen=True, kw_only=True)
class Filed:
    """One filing that the server has.

    Args:
        accession: of the filing.
        form: of the filing.
        body: the full submission.
        parties: each gives an entry of the feed.
        updated: when it was accepted.
    """

    accession: str
    form: str
    body: bytes
    parties: tuple[Party, ...] = (Party(cik="0009990001", name="Example Harbour Corp."),)
    updated: datetime = datetime(2026, 3, 2, 16, 5, 0, tzinfo=EASTERN)
    items: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request that came: monotonic seconds, path with query, headers in lower case."""

    at: float
    path: str
    headers: dict[str, str]


class EdgarStandIn:
    """The server; an async context manager that listens on a free port of loopback.

    Args:
        now: the moment that the feed says it was made; real time when none is given.
    """

    def __init__(self, now: datetime | None = None) -> None:
        self.filings: list[Filed] = []
        self.indexes: dict[str, bytes] = {}
        self.submissions: dict[str, object] = {}
        self.tickers: dict[str, object] = {}
        self.requests: list[Request] = []
        self.now = now
        self._scripted: list[tuple[str, deque[Reply]]] = []
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._asked = asyncio.Condition()

    @property
    def url(self) -> str:
        """Where it listens."""
        if self._server is None:
            raise RuntimeError("the server is not running")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def file(self, *filings: Filed) -> None:
        """Put filings at the top of the feed, the last one topmost."""
        for filing in filings:
            self.filings.insert(0, filing)

    def script(self, path: str, *replies: Reply) -> None:
        """Give these answers, one after another, to requests whose path contains ``path``; then behave again."""
        self._scripted.append((path, deque(replies)))

    def paths(self, containing: str) -> list[str]:
        """Return the paths asked for that contain a text, in order."""
        return [request.path for request in self.requests if containing in request.path]

    async def asked(self, containing: str) -> None:
        """Wait until a path that contains a text was asked for."""
        async with self._asked:
            await self._asked.wait_for(lambda: bool(self.paths(containing)))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
        try:
            while await self._answer_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has gone, or the server is closing
        finally:
            writer.close()
            if task is not None:
                self._connections.discard(task)

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; false when the connection is to be dropped."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        path = head[0].split(" ")[1]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:]) if name}
        self.requests.append(Request(at=time.monotonic(), path=path, headers=headers))
        async with self._asked:
            self._asked.notify_all()
        reply = self._reply(path, headers)
        if reply.die:
            reply.die()
        if reply.delay:
            await asyncio.sleep(reply.delay)
        lines = [f"HTTP/1.1 {reply.status} X", f"Content-Length: {len(reply.body)}"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        body = reply.body if reply.cut is None else reply.body[: reply.cut]
        step = max(1, len(body) // 8) if reply.drip else max(1, len(body))
        for start in range(0, len(body), step):
            writer.write(body[start : start + step])
            await writer.drain()
            if reply.drip:
                await asyncio.sleep(reply.drip)
        await writer.drain()
        return reply.cut is None

    def _reply(self, path: str, headers: dict[str, str]) -> Reply:
        for part, replies in self._scripted:
            if part in path and replies:
                return replies.popleft()
        parts = urlsplit(path)
        if parts.path == "/cgi-bin/browse-edgar":
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            return self._current(int(query.get("start", "0")), int(query.get("count", "100")), headers)
        if found := _SUBMISSION.fullmatch(parts.path):
            body = next((filed.body for filed in self.filings if filed.accession == found[1]), None)
            return Reply(body=body) if body is not None else Reply(status=404, body=b"<html>not here</html>")
        if parts.path in self.indexes:
            return Reply(body=self.indexes[parts.path])
        if parts.path.startswith("/submissions/") and parts.path in self.submissions:
            return Reply(body=json.dumps(self.submissions[parts.path]).encode())
        if parts.path == "/files/company_tickers.json":
            return Reply(body=json.dumps(self.tickers).encode())
        return Reply(status=404, body=b"<html>not here</html>")

    def _current(self, start: int, count: int, headers: dict[str, str]) -> Reply:
        entries = [(filed, party) for filed in self.filings for party in filed.parties]
        page = entries[start : start + count]
        if start and not page:
            return Reply(status=503, body=UNAVAILABLE_PAGE)
        listing = "".join(_entry(filed, party) for filed, party in page)
        etag = f'"{hashlib.sha256(listing.encode()).hexdigest()[:16]}"'
        if headers.get("if-none-match") == etag:
            return Reply(status=304, headers={"ETag": etag})
        now = self.now or datetime.now(UTC).astimezone(EASTERN)
        body = (
            '<?xml version="1.0" encoding="ISO-8859-1" ?>\n<feed xmlns="http://www.w3.org/2005/Atom">\n'
            '<link rel="self" href="/cgi-bin/browse-edgar?action=getcurrent"/>\n'
            f"<updated>{now.isoformat(timespec='seconds')}</updated>\n{listing}</feed>\n"
        )
        return Reply(body=body.encode("latin-1", "xmlcharrefreplace"), headers={"ETag": etag})


def _entry(filed: Filed, party: Party) -> str:
    items = "".join(f"\n&lt;br&gt;Item {item}: Something" for item in filed.items)
    folder = f"/Archives/edgar/data/{int(party.cik)}/{filed.accession.replace('-', '')}"
    return (
        f"<entry>\n<title>{escape(filed.form)} - {escape(party.name)} ({party.cik}) ({party.role})</title>\n"
        f'<link rel="alternate" type="text/html" href="{folder}/{filed.accession}-index.htm"/>\n'
        f'<summary type="html">\n &lt;b&gt;Filed:&lt;/b&gt; {filed.updated:%Y-%m-%d} '
        f"&lt;b&gt;AccNo:&lt;/b&gt; {filed.accession} &lt;b&gt;Size:&lt;/b&gt; 5 KB{items}\n</summary>\n"
        f"<updated>{filed.updated.isoformat()}</updated>\n"
        f'<category scheme="https://www.sec.gov/" label="form type" term="{escape(filed.form)}"/>\n'
        f"<id>urn:tag:sec.gov,2008:accession-number={filed.accession}</id>\n</entry>\n"
    )
