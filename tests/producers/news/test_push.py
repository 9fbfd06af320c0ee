"""Vendors that push: webhook answers after confirmation, WebSocket reconnects and recognises replays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from pydantic import SecretStr

from ops.embedded import free_port
from producers.news.desk import NewsDesk
from producers.news.duplicates import DuplicateIndex
from producers.news.item import Defaults
from producers.news.socket import NewsSocket
from producers.news.webhook import Webhook
from producers.outlet import Outlet
from schemas.enums import NewsStatus
from schemas.errors import UnavailableError
from schemas.news_settings import NewsSocketSettings, NewsSourceSettings, NewsWebhookSettings
from schemas.records import Event
from schemas.settings import KafkaSettings
from tests.producers.news import documents as docs
from tests.producers.news.conftest import Office, Site

pytestmark = pytest.mark.integration


@asynccontextmanager
async def webhook(
    desk: NewsDesk, *, publish_seconds: float = 30.0, **settings: Any
) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """A webhook for the source ``vendor``, and a client for it."""
    found = NewsWebhookSettings(port=free_port(), sources=(NewsSourceSettings(name="vendor"),), **settings)
    async with (
        Webhook(found, {"vendor": Defaults(source="vendor")}, desk, publish_seconds=publish_seconds),
        aiohttp.ClientSession(base_url=f"http://127.0.0.1:{found.port}") as session,
    ):
        yield session, "/news/vendor"


async def test_a_pushed_story_is_answered_once_it_is_published(office: Office) -> None:
    """Created, updated and deleted messages become a chain; each answer names the event, which is on the topic."""
    async with webhook(office.desk) as (session, path):
        for action, content in (
            ("created", {}),
            ("updated", {"title": "Brightmoor wins, with limits", "updated_at": "2026-09-18T15:05:00Z"}),
            ("deleted", {"title": "", "body": "", "securities": [], "updated_at": "2026-09-18T15:06:00Z"}),
        ):
            answer = await session.post(path, json=docs.envelope(action, **content))
            assert answer.status == 200
            (event_id,) = (await answer.json())["published"]
            assert event_id in {event.event_id for event in await office.topic()}
    events = await office.topic()
    assert [event.event_id for event in events] == ["vendor:501:1", "vendor:501:2", "vendor:501:3"]
    assert events[2].status is NewsStatus.KILLED
    assert events[2].instruments == ["BMRP"]


async def test_any_news_format_can_be_pushed(office: Office) -> None:
    """A request may hold NewsML or JSON Lines as well, and bad lines are named in the answer."""
    async with webhook(office.desk) as (session, path):
        assert (await session.post(path, data=docs.newsml_1())).status == 200
        lines = (
            json.dumps(docs.envelope(story=1)).encode() + b"\nnot json\n" + json.dumps(docs.envelope(story=2)).encode()
        )
        answer = await (await session.post(path, data=lines)).json()
    assert answer["published"] == ["vendor:1:1", "vendor:2:1"]
    assert answer["rejected"][0]["line"] == 2


async def test_requests_that_cannot_be_news_are_refused(office: Office) -> None:
    """No token, an unknown source, a body that is no news, one that is too large: each with its status."""
    async with webhook(office.desk, token=SecretStr("s3cret"), max_mb=0.01) as (session, path):
        body = json.dumps(docs.envelope())
        assert (await session.post(path, data=body)).status == 401
        assert (await session.post(path, data=body, headers={"Authorization": "Bearer wrong"})).status == 401
        good = {"Authorization": "Bearer s3cret"}
        assert (await session.post("/news/stranger", data=body, headers=good)).status == 404
        refused = await session.post(path, data=b"hello", headers=good)
        assert refused.status == 400
        assert (await refused.json())["rejected"][0]["kind"] == "unknown_format"
        assert (await session.post(path, data=b"x" * 20_000, headers=good)).status == 413
        assert await office.topic() == []
        assert (await session.post(path, data=body, headers=good)).status == 200


async def test_what_is_not_published_is_asked_for_again(office: Office, kafka_settings: KafkaSettings) -> None:
    """When Kafka is away too long, and when the desk is closed, the vendor is told to send the message again."""

    class Waiting(Outlet):
        async def send(self, events: Sequence[Event]) -> None:
            await asyncio.Event().wait()

    desk = NewsDesk(office.store, Waiting(kafka_settings, client_id="tests"), DuplicateIndex(similarity=0.75))
    working = asyncio.create_task(desk.run(asyncio.Event()))
    async with webhook(desk, publish_seconds=0.01) as (session, path):
        assert (await session.post(path, json=docs.envelope())).status == 503
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        assert (await session.post(path, json=docs.envelope())).status == 503


async def test_a_port_in_use_is_named(office: Office) -> None:
    """A webhook that cannot bind says which port and which setting."""
    async with webhook(office.desk) as (session, _):
        port = session._base_url.port if session._base_url else 0
        settings = NewsWebhookSettings(port=port or 0, sources=(NewsSourceSettings(name="vendor"),))
        with pytest.raises(UnavailableError) as caught:
            await Webhook(settings, {}, office.desk).__aenter__()
    assert caught.value.setting == "news.webhook.port"


Script = Callable[[web.WebSocketResponse], Any]


@asynccontextmanager
async def socket(site: Site, office: Office, *scripts: Script, **settings: Any) -> AsyncIterator[NewsSocket]:
    """Follow a vendor that plays one script per connection, and then says nothing more."""
    connection = 0

    async def vendor(request: web.Request) -> web.WebSocketResponse:
        nonlocal connection
        response = web.WebSocketResponse()
        await response.prepare(request)
        connection += 1
        if connection <= len(scripts):
            await scripts[connection - 1](response)
            await response.close()
        else:
            await response.receive()
        return response

    async def no_sleep(_: float) -> None:
        await asyncio.sleep(0)

    site.answer("/stream", vendor)
    url = site.url.replace("http", "ws") + "/stream?token=top-secret"
    found = NewsSocketSettings(name="vendor", url=SecretStr(url), **settings)
    follow = NewsSocket(found, Defaults(source="vendor"), office.desk, sleep=no_sleep)
    work = asyncio.create_task(follow.run())
    try:
        yield follow
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


async def test_a_reconnect_publishes_nothing_twice(
    site: Site, office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    """After a connection ends the vendor replays its last messages; only the new one becomes an event."""

    async def first(response: web.WebSocketResponse) -> None:
        await response.send_str("pong")
        await response.send_str("no message at all")
        await response.send_json(docs.envelope(story=1))
        await response.send_json(docs.envelope(story=2))

    async def second(response: web.WebSocketResponse) -> None:
        await response.send_json(docs.envelope(story=1))
        await response.send_json(docs.envelope(story=2))
        await response.send_json(docs.envelope("Deleted", story=1, title="", updated_at="2026-09-18T15:09:00Z"))

    async with socket(site, office, first, second) as follow:
        events = [await office.confirmed.get() for _ in range(3)]
        assert follow.rejected == 1
        assert follow.connections >= 2
    assert [event.event_id for event in events] == ["vendor:1:1", "vendor:2:1", "vendor:1:2"]
    assert events[2].status is NewsStatus.KILLED
    assert len(await office.topic()) == 3
    assert "top-secret" not in caplog.text


async def test_a_subscription_and_headers_are_sent(site: Site, office: Office) -> None:
    """What the vendor wants to hear first is sent on every connection, and so are the headers."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def listen(response: web.WebSocketResponse) -> None:
        heard.put_nowait(await response.receive_str())

    settings = {"subscribe": SecretStr("subscribe news"), "headers": {"Authorization": SecretStr("Bearer x")}}
    async with socket(site, office, listen, listen, **settings):
        assert [await heard.get(), await heard.get()] == ["subscribe news"] * 2
    assert site.requests[0].headers["Authorization"] == "Bearer x"


async def test_a_refused_connection_is_tried_again(site: Site, office: Office) -> None:
    """A vendor that answers with an error or not at all is tried until it lets us in."""
    turns = iter((503, 401))
    opened = asyncio.Event()

    async def refuse_then_open(request: web.Request) -> web.StreamResponse:
        if status := next(turns, 0):
            return web.Response(status=status)
        response = web.WebSocketResponse()
        await response.prepare(request)
        opened.set()
        await response.receive()
        return response

    async with socket(site, office):
        site.answer("/stream", refuse_then_open)
        await opened.wait()
