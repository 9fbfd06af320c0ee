"""The feed against the stand-in for SEC, a broker and a Redis."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime

import pytest
import redis.asyncio as redis

from ops.bench.edgar_stand_in import EASTERN, RATE_PAGE, UNAVAILABLE_PAGE, UNDECLARED_PAGE, EdgarStandIn, Party, Reply
from ops.bench.made_filings import COMPANY, filed, submission
from producers.edgar.times import to_ns
from schemas.errors import UnavailableError
from schemas.records import FilingEvent
from schemas.settings import KafkaSettings, RedisSettings
from tests.producers.edgar.conftest import DEADLINE_SECONDS, FeedMaker, look_once, published

pytestmark = pytest.mark.integration

OWNER = Party(cik="0009990002", name="Doe Jane", role="Reporting")
ISSUER = Party(cik="0009990001", name="Example Harbour Corp.", role="Issuer")


def _accessions(events: list[FilingEvent]) -> list[str]:
    return [event.accession for event in events]


def _at(moment: str) -> datetime:
    return datetime.strptime(moment, "%Y%m%d%H%M%S").replace(tzinfo=EASTERN)


async def test_publishes_what_is_filed(
    server: EdgarStandIn, make_feed: FeedMaker, kafka_settings: KafkaSettings
) -> None:
    """A filing of the feed is fetched and its parts are on the topic, keyed, timed and in order."""
    server.file(filed(1))
    feed = await look_once(make_feed)
    events = await published(kafka_settings)
    assert [event.event_id for event in events] == ["0009990001-26-000001:1:1"]
    assert events[0].text.startswith("Item 8.01 Other Events\nExample Harbour opened a second pier.")
    assert events[0].accepted_at_ns == 1_772_485_500_000_000_000
    assert events[0].url == f"{server.url}/Archives/edgar/data/9990001/000999000126000001/0009990001-26-000001.txt"
    assert (feed.counts.filings, feed.counts.events, len(feed.counts.latencies_ms)) == (1, 1, 1)
    assert all(request.headers["user-agent"].startswith("Tapewire tests") for request in server.requests)


async def test_two_sweeps_publish_each_accession_once(
    server: EdgarStandIn, make_feed: FeedMaker, kafka_settings: KafkaSettings
) -> None:
    """Listed per party and again in the next sweep, each filing is fetched and published once."""
    server.file(*(filed(number, form="4", parties=(OWNER, ISSUER)) for number in range(1, 6)))
    async with asyncio.timeout(DEADLINE_SECONDS), make_feed() as feed:
        stop = asyncio.Event()
        running = asyncio.create_task(feed.run(stop, limit=8))
        await feed.until(lambda counts: counts.filings == 5)
        server.file(*(filed(number, form="4", parties=(OWNER, ISSUER)) for number in range(6, 9)))
        await running
    assert Counter(_accessions(await published(kafka_settings))) == Counter(
        f"0009990001-26-{number:06d}" for number in range(1, 9)
    )
    assert len(server.paths(".txt")) == 8


async def test_restart_publishes_nothing_twice(
    server: EdgarStandIn, make_feed: FeedMaker, kafka_settings: KafkaSettings
) -> None:
    """A second process knows from Redis what the first one published."""
    server.file(filed(1), filed(2))
    await look_once(make_feed)
    server.file(filed(3))
    feed = await look_once(make_feed)
    assert feed.counts.filings == 1
    assert sorted(_accessions(await published(kafka_settings))) == [f"0009990001-26-{n:06d}" for n in (1, 2, 3)]


async def test_restart_without_redis_reads_the_topic(
    server: EdgarStandIn, make_feed: FeedMaker, kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """With Redis emptied the topic's tail says what was published; half-published filings are not taken for done."""
    body = "".join(f"<p>Paragraph {number}. {'Words of it. ' * 60}</p>" for number in range(8))
    server.file(filed(1), filed(2, body=body))
    await look_once(make_feed, part_chars=2_000)
    parts = [event for event in await published(kafka_settings) if event.accession.endswith("2")]
    assert len(parts) > 1
    client = redis.Redis.from_url(redis_settings.url)
    await client.delete(kafka_settings.topics.edgar_seen_key, kafka_settings.topics.edgar_covered_key)
    await client.aclose()
    feed = await look_once(make_feed, part_chars=2_000)
    assert feed.counts.filings == 0
    client = redis.Redis.from_url(redis_settings.url)
    assert await client.zcard(kafka_settings.topics.edgar_seen_key) == 2
    await client.aclose()


@pytest.mark.parametrize(
    ("page", "setting"),
    [(UNDECLARED_PAGE, "edgar.user_agent"), (RATE_PAGE, "edgar.user_agent"), (UNAVAILABLE_PAGE, "edgar.user_agent")],
)
async def test_first_look_that_fails_is_for_the_operator(
    server: EdgarStandIn, make_feed: FeedMaker, page: bytes, setting: str
) -> None:
    """At the start an error page ends the feed with the setting to look at, and is never read as an empty feed."""
    server.script("getcurrent", Reply(status=403, body=page))
    with pytest.raises(UnavailableError) as caught:
        await look_once(make_feed)
    assert caught.value.setting == setting


async def test_error_pages_later_are_waited_out(
    server: EdgarStandIn, make_feed: FeedMaker, kafka_settings: KafkaSettings
) -> None:
    """Once running, a rate limit page, maintenance and HTML called success neither stop the feed nor lose a filing."""
    server.file(filed(1))
    async with asyncio.timeout(DEADLINE_SECONDS), make_feed() as feed:
        running = asyncio.create_task(feed.run(asyncio.Event(), limit=2))
        await feed.until(lambda counts: counts.filings == 1)
        server.script(
            "getcurrent",
            Reply(status=403, body=RATE_PAGE),
            Reply(status=503, body=UNAVAILABLE_PAGE),
            Reply(body=UNAVAILABLE_PAGE),
            Reply(body=b"<?xml version='1.0'?><feed xmlns='http://www.w3.org/2005/Atom'><entry>"),
        )
        server.file(filed(2))
        await running
    assert sorted(_accessions(await published(kafka_settings))) == [f"0009990001-26-{n:06d}" for n in (1, 2)]


async def test_submission_that_is_not_there_yet(
    server: EdgarStandIn, make_feed: FeedMaker, kafka_settings: KafkaSettings
) -> None:
    """404, a cut body, an HTML page and a file without its end are tried again until the whole filing is there."""
    whole = filed(1)
    server.file(whole)
    server.script(
        ".txt",
        Reply(status=404),
        Reply(body=whole.body, cut=200),
        Reply(body=UNAVAILABLE_PAGE),
        Reply(body=whole.body[: len(whole.body) // 2]),
        Reply(status=200, body=whole.body, drip=0.001),
    )
    feed = await look_once(make_feed)
    assert feed.counts.retries >= 2
    (event,) = await published(kafka_settings)
    assert "second pier" in event.text


async def test_another_filing_under_the_address_is_refused(
    server: EdgarStandIn, make_feed: FeedMaker, kafka_settings: KafkaSettings
) -> None:
    """A file that says it is another filing is never published under the wrong accession; it is given up."""
    server.file(filed(1))
    server.script(".txt", *[Reply(body=submission("0009990001-26-000077"))] * 20)
    feed = await look_once(make_feed, attempts_most=3)
    assert (feed.counts.given_up, feed.counts.filings) == (1, 0)
    assert await published(kafka_settings) == []


async def test_filing_without_text_is_done(server: EdgarStandIn, make_feed: FeedMaker) -> None:
    """A filing of pictures alone is counted and not asked for again by the next process."""
    server.file(filed(1, body="&nbsp;"))
    assert (await look_once(make_feed)).counts.without_events == 1
    assert (await look_once(make_feed)).counts.listed == 0


async def test_only_the_forms_that_are_wanted(
    server: EdgarStandIn, make_feed: FeedMaker, kafka_settings: KafkaSettings
) -> None:
    """Patterns choose forms; amendments come with what they amend."""
    forms = ("8-K", "8-K/A", "4", "424B5", "S-1")
    server.file(*(filed(number, form=form) for number, form in enumerate(forms, start=1)))
    await look_once(make_feed, forms=("8-K", "424b*"), link_amendments=False)
    assert sorted(event.form for event in await published(kafka_settings)) == ["424B5", "8-K", "8-K/A"]


async def test_amendments_are_linked(server: EdgarStandIn, make_feed: FeedMaker, kafka_settings: KafkaSettings) -> None:
    """An amendment's events name the filing that it amends, from the company's own list."""
    server.submissions[f"/submissions/CIK{COMPANY.cik}.json"] = {
        "cik": COMPANY.cik,
        "name": COMPANY.name,
        "filings": {
            "recent": {
                "accessionNumber": ["0009990001-26-000001"],
                "form": ["8-K"],
                "filingDate": ["2026-03-02"],
                "reportDate": ["2026-03-02"],
            }
        },
    }
    server.file(filed(1), filed(2, form="8-K/A"))
    await look_once(make_feed)
    amends = {event.accession: event.amends for event in await published(kafka_settings)}
    assert amends == {"0009990001-26-000001": "", "0009990001-26-000002": "0009990001-26-000001"}


async def test_pages_are_read_back_to_known_ground(
    server: EdgarStandIn, make_feed: FeedMaker, kafka_settings: KafkaSettings
) -> None:
    """After a pause the feed goes back as many pages as it takes, and no further."""
    server.file(*(filed(number, accepted="20260302140000") for number in range(1, 31)))
    server.now = _at("20260302150100")
    await look_once(make_feed, page_entries=10)
    server.file(*(filed(number, accepted="20260302160000") for number in range(31, 56)))
    server.now = _at("20260302160100")
    server.requests.clear()
    await look_once(make_feed, page_entries=10)
    new = {f"0009990001-26-{number:06d}" for number in range(31, 56)}
    assert new <= set(_accessions(await published(kafka_settings)))
    assert [path.split("start=")[1].split("&")[0] for path in server.paths("getcurrent")] == ["0", "10", "20", "30"]


async def test_catch_up_through_the_daily_index(
    server: EdgarStandIn,
    make_feed: FeedMaker,
    kafka_settings: KafkaSettings,
) -> None:
    """What has left the current feed during a long absence comes from the daily index, known filings left out."""
    server.file(filed(1, accepted="20260302150000"))
    server.now = _at("20260302150100")
    await look_once(make_feed)
    missed = [filed(number, accepted="20260302170000") for number in (2, 3)]
    server.filings = [filed(9, accepted="20260303090000"), *missed, *server.filings]
    server.now = _at("20260303090100")
    lines = [f"9990001|Example|8-K|20260302|edgar/data/9990001/0009990001-26-{n:06d}.txt" for n in (1, 2, 3)]
    head = "CIK|Company Name|Form Type|Date Filed|File Name\n"
    server.indexes["/Archives/edgar/daily-index/2026/QTR1/master.20260302.idx"] = (head + "\n".join(lines)).encode()
    # The pages behind the first cannot be had: that is neither the end of the feed nor the end of the world.
    server.script("start=10", *[Reply(status=503, body=UNAVAILABLE_PAGE)] * 50)
    top = [filed(number, accepted="20260303090000") for number in range(10, 19)]
    server.file(*top)
    feed = await look_once(make_feed, page_entries=10, now_ns=to_ns(server.now))
    accessions = Counter(_accessions(await published(kafka_settings)))
    assert set(accessions.values()) == {1}
    assert {f"0009990001-26-{n:06d}" for n in (1, 2, 3)} <= set(accessions)
    assert feed.counts.filings == 12


async def test_stop_ends_the_feed(server: EdgarStandIn, make_feed: FeedMaker) -> None:
    """Setting stop ends a running feed, also while SEC lets it wait for an answer."""
    server.file(filed(1))
    server.script(".txt", Reply(delay=60.0))
    async with asyncio.timeout(DEADLINE_SECONDS), make_feed() as feed:
        stop = asyncio.Event()
        running = asyncio.create_task(feed.run(stop))
        await server.asked(".txt")
        stop.set()
        counts = await running
    assert counts.filings == 0
