"""Polling feeds: conditional, once, patient with bad answers; a bank's statements are fetched and compared."""

from __future__ import annotations

import time
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from producers.errors import FeedError, FeedErrorKind, FetchError, FetchErrorKind
from producers.http import HttpClient
from producers.news.item import Defaults
from producers.news.poll import FeedPoller, PollOptions
from producers.news.story import Verdict
from producers.pacing import HostPacer
from schemas.news_settings import NewsFeedSettings
from tests.producers.news import documents as docs
from tests.producers.news.conftest import Office, Site

pytestmark = pytest.mark.integration

HOUR = 3600 * 10**9


def stamp(ago_seconds: float = 0) -> str:
    """An RSS time so long ago."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() - ago_seconds))


@pytest_asyncio.fixture
async def client() -> Any:
    """An HTTP client that does not wait between its attempts."""

    async def no_sleep(_: float) -> None:
        return None

    async with HttpClient(
        user_agent="Tests tests@tapewire.example",
        setting="news.user_agent",
        per_second=1000,
        pacer=HostPacer(),
        sleep=no_sleep,
    ) as found:
        yield found


def poller(site: Site, office: Office, client: HttpClient, *, bank: Any = "", name: str = "harborline") -> FeedPoller:
    """A poller of the site's feed."""
    feed = NewsFeedSettings(name=name, url=f"{site.url}/feed.xml", bank=bank)
    options = PollOptions(defaults=Defaults(source=name, urgency=1 if bank else 0), backfill_ns=HOUR)
    return FeedPoller(feed, options, client, office.desk, office.store)


async def test_two_sweeps_publish_each_item_once(site: Site, office: Office, client: HttpClient) -> None:
    """The second sweep publishes only what is new, and a changed title is a correction."""
    follow = poller(site, office, client)
    first, second = stamp(9), stamp(8)
    site.serve("/feed.xml", docs.rss(docs.rss_item(1, "Vantor cuts", at=first), docs.rss_item(2, "Pell up", at=second)))
    await follow.poll()
    site.serve(
        "/feed.xml",
        docs.rss(
            docs.rss_item(3, "Orvelle halts", at=stamp(1)),
            docs.rss_item(2, "Pell up 4%", at=second),
            docs.rss_item(1, "Vantor cuts", at=first),
        ),
    )
    receipt = await follow.poll()
    assert receipt.verdicts == {Verdict.NEW: 1, Verdict.CHANGED: 1, Verdict.DUPLICATE: 1}
    assert sorted(
        event.event_id.removeprefix("harborline:https://www.harborline.example/") for event in await office.topic()
    ) == [
        "1:1",
        "2:1",
        "2:2",
        "3:1",
    ]


async def test_polls_are_conditional(site: Site, office: Office, client: HttpClient) -> None:
    """After a page was published its ETag makes the next poll a 304, and nothing is read again."""
    follow = poller(site, office, client)
    site.serve("/feed.xml", docs.rss(docs.rss_item(1, "Vantor cuts", at=stamp())), etag='"v1"')
    await follow.poll()
    assert (await follow.poll()).verdicts == {}
    assert site.requests[-1].headers["If-None-Match"] == '"v1"'
    assert "tests@tapewire.example" in site.requests[-1].headers["User-Agent"]


async def test_old_items_of_a_feed_that_is_new_to_us_are_no_news(
    site: Site, office: Office, client: HttpClient
) -> None:
    """On the first read, yesterday's items are taken as known; after a restart, a feed known before hides nothing."""
    old = docs.rss_item(1, "Vantor cut yesterday", at=stamp(86_400))
    site.serve("/feed.xml", docs.rss(old, docs.rss_item(2, "Pell up", at=stamp(60))))
    await poller(site, office, client).poll()
    assert [event.headline for event in await office.topic()] == ["Pell up"]
    site.serve("/feed.xml", docs.rss(old, docs.rss_item(3, "Orvelle halted while we were down", at=stamp(7200))))
    await poller(site, office, client).poll()
    assert [event.headline for event in await office.topic()] == ["Pell up", "Orvelle halted while we were down"]


async def test_an_error_page_is_not_read_as_a_feed(site: Site, office: Office, client: HttpClient) -> None:
    """HTML with status 200 in place of the feed is rejected, and the validators of the good page are not lost to it."""
    follow = poller(site, office, client)
    site.serve("/feed.xml", b"<html><body>Service unavailable</body></html>", etag='"error"')
    with pytest.raises(FeedError) as caught:
        await follow.poll()
    assert caught.value.kind is FeedErrorKind.UNKNOWN_FORMAT
    site.serve("/feed.xml", docs.rss(docs.rss_item(1, "Vantor cuts", at=stamp())), etag='"error"')
    assert (await follow.poll()).verdicts == {Verdict.NEW: 1}


async def test_a_server_in_trouble_is_tried_again_and_then_left(site: Site, office: Office, client: HttpClient) -> None:
    """A 503 is retried; when it stays, the poll fails with its kind and the next poll may do better."""
    follow = poller(site, office, client)
    site.serve("/feed.xml", b"busy", status=503)
    with pytest.raises(FetchError) as caught:
        await follow.poll()
    assert caught.value.kind is FetchErrorKind.UNAVAILABLE
    assert site.asked("/feed.xml") == 2


async def test_a_cut_response_is_not_half_a_feed(site: Site, office: Office, client: HttpClient) -> None:
    """A connection that ends in the middle of the page publishes nothing; the whole page afterwards does."""
    page = docs.rss(docs.rss_item(1, "Vantor cuts", at=stamp()), docs.rss_item(2, "Pell up", at=stamp()))

    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(page))})
        await response.prepare(request)
        await response.write(page[: len(page) // 2])
        assert request.transport is not None
        request.transport.abort()
        return response

    follow = poller(site, office, client)
    site.answer("/feed.xml", cut)
    with pytest.raises(FetchError):
        await follow.poll()
    assert await office.topic() == []
    site.serve("/feed.xml", page)
    assert (await follow.poll()).verdicts == {Verdict.NEW: 2}


async def test_a_banks_statement_is_fetched_and_compared(site: Site, office: Office, client: HttpClient) -> None:
    """The press item of a statement becomes its text with the changed sentences; other items stay headlines."""
    follow = poller(site, office, client, bank="fed", name="fed")
    times = [stamp(30), stamp(9), stamp(8)]

    def page(number: int) -> bytes:
        link = f"{site.url}/statement{number}.htm"
        statement = (
            f"<item><title>Federal Reserve issues FOMC statement</title><link><![CDATA[{link}]]></link>"
            f"<guid><![CDATA[{link}]]></guid><pubDate>{times[number]}</pubDate></item>"
        )
        return docs.rss(docs.rss_item(7, "Federal Reserve Board announces a fine", at=times[0]), statement)

    site.serve("/feed.xml", page(1))
    site.serve("/statement1.htm", docs.fed_page())
    await follow.poll()
    await follow.poll()
    assert site.asked("/statement1.htm") == 1
    site.serve("/feed.xml", page(2))
    site.serve("/statement2.htm", docs.fed_page(docs.FED_STATEMENT.replace("to raise", "to lower")))
    await follow.poll()
    events = await office.topic()
    assert all(event.urgency == 1 for event in events)
    statements = [event for event in events if "FOMC" in event.headline]
    assert [len(event.changed) for event in statements] == [0, 1]
    assert statements[1].changed[0].startswith("The Committee decided to lower")
    assert "John B. Roe" in statements[1].body
    assert len(events) == 3


async def test_a_statement_whose_page_is_late_comes_twice(site: Site, office: Office, client: HttpClient) -> None:
    """Without its page the headline goes out at once; with the page, on a later poll of an unchanged feed, the text."""
    follow = poller(site, office, client, bank="fed", name="fed")
    link = f"{site.url}/statement.htm"
    title = "<title>Federal Reserve issues FOMC statement</title>"
    item = f"<item>{title}<link>{link}</link><guid>{link}</guid><pubDate>{stamp()}</pubDate></item>"
    site.serve("/feed.xml", docs.rss(item), etag='"1"')
    await follow.poll()
    await follow.poll()
    site.serve("/statement.htm", docs.fed_page())
    await follow.poll()
    await follow.poll()
    first, second = await office.topic()
    assert (first.body, first.notes) == ("", ["body: statement not read yet"])
    assert second.supersedes == first.event_id
    assert second.body.startswith("Indicators of activity")
