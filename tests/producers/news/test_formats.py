"""Every format: what its documents become, what is rejected with which reason, and what hostile input cannot do."""

from __future__ import annotations

import json
import os
import random
import resource
import time
from collections import Counter
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from producers.errors import FeedError, FeedErrorKind
from producers.formats import ParseContext, Parsed, parse
from producers.news import FORMATS
from producers.news.formats import MAX_NEWS_BYTES, read_news
from producers.news.item import NO_DEFAULTS, Defaults, NewsItem
from producers.news.json_lines import json_lines_items
from schemas.codec import Limits, decode_news, encode_json
from schemas.enums import NewsStatus
from schemas.errors import DecodeError
from schemas.records import NewsEvent
from tests.producers.news import documents as docs
from tests.producers.news.documents import RECEIVED

CORPUS = Path(os.environ.get("TAPEWIRE_TEST_CORPUS", Path(__file__).parents[4] / "shared" / "corpus"))

FIVE_PM_CEST = 1_789_743_600_000_000_000
"""2026-09-18T15:00:00Z."""


def read(data: bytes, defaults: Defaults = NO_DEFAULTS) -> NewsItem:
    """The only item of a document."""
    (item,) = read_news(data, defaults, RECEIVED).items
    return item


def parsed(data: bytes) -> Parsed:
    """What the registry makes of a document."""
    return parse(data, ParseContext(received_at_ns=RECEIVED), FORMATS)


def test_ninjs_1_is_read() -> None:
    """A ninjs 1.x item gives headline, text without markup, version, times, urgency and US ticker."""
    item = read(docs.ninjs_1())
    assert (item.source, item.story) == ("harborline.example", "http://www.harborline.example/news/20260918-0001")
    assert item.headline == "Kestavel Airlines grounds 12 narrow-bodies"
    assert item.body == "Kestavel Airlines grounds 12 jets & cuts its outlook.\n\nShares fell."
    assert (item.declared, item.urgency, item.instruments) == (1, 3, ["KSTV"])
    assert item.published_at_ns == item.revised_at_ns == FIVE_PM_CEST
    assert item.url == item.story


def test_ninjs_2_prefers_the_plain_body() -> None:
    """Of several bodies the plain text is taken, and the copyright holder names the source."""
    item = read(docs.ninjs_2())
    assert (item.source, item.language, item.declared) == ("Nordpuls", "sv", 2)
    assert item.headline == "Gruvbolaget Malmvik höjer utdelningen"
    assert item.body == "Malmvik höjer utdelningen till 4,50 kronor."


def test_ninjs_3_is_read() -> None:
    """The third generation's spellings are understood, and a URN names its provider."""
    item = read(docs.ninjs_3())
    assert (item.source, item.declared, item.published_at_ns) == ("rheinblick.example", 3, FIVE_PM_CEST)
    assert item.body == "Die Talwerke senken."


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (docs.ninjs_1(), "ninjs-1"),
        (docs.ninjs_2(), "ninjs-2"),
        (docs.ninjs_3(), "ninjs-3"),
        (docs.newsml_g2(), "newsml-g2"),
        (docs.newsml_1(), "newsml-1"),
        (docs.rss(docs.rss_item(1, "Vantor cuts its dividend")), "rss"),
        (docs.ATOM, "rss"),
        (
            docs.rss(docs.rss_item(1, "Vantor cuts its dividend")).decode().replace("utf-8", "utf-16").encode("utf-16"),
            "rss",
        ),
        (json.dumps(docs.envelope()).encode(), "news-message"),
        (json.dumps(docs.envelope(), indent=2).encode(), "news-message"),
        (b"\n".join(json.dumps(docs.envelope(story=n)).encode() for n in (1, 2)), "json-lines"),
        (docs.FED_STATEMENT.encode(), "statement"),
        (docs.ECB_STATEMENT.encode(), "statement"),
    ],
)
def test_formats_are_told_apart_by_content(data: bytes, name: str) -> None:
    """Every format is recognised without a file name, and its events are valid records."""
    found = parsed(data)
    assert found.format == name
    assert found.rejected is None
    for event in found.items:
        assert isinstance(event, NewsEvent)
        assert decode_news(encode_json(event)) == event


def test_newsml_g2_is_read() -> None:
    """Headline, body content without the repeated head, table rows, version, urgency and instruments come out."""
    item = read(docs.newsml_g2())
    assert (item.source, item.story) == ("harborline.example", "urn:newsml:harborline.example:20260918:QUILL-Q3")
    assert item.headline == "Quillmark Foods lifts its full-year forecast"
    assert item.body == "Quillmark now expects 4.1 percent.\n\nYear | Sales\n2026 | 1,204"
    assert (item.declared, item.urgency, item.language) == (4, 2, "en-US")
    assert item.instruments == ["XLON:QLM", "QLM.B"]
    assert item.published_at_ns == FIVE_PM_CEST


def test_a_news_message_gives_all_its_items() -> None:
    """Several items in one NewsML-G2 message are several items, and a picture among them is passed over."""
    inner = docs.newsml_g2().decode().partition("?>\n")[2]
    picture = docs.newsml_g2(item_class="ninat:picture").decode().partition("?>\n")[2]
    other = inner.replace("QUILL-Q3", "QUILL-Q4")
    message = f'<newsMessage xmlns="http://iptc.org/std/nar/2006-10-01/"><itemSet>{inner}{picture}{other}</itemSet></newsMessage>'
    items = read_news(message.encode(), NO_DEFAULTS, RECEIVED).items
    assert [item.story.rpartition(":")[2] for item in items] == ["QUILL-Q3", "QUILL-Q4"]


def test_a_press_release_is_read() -> None:
    """Body without style sheet and contacts, repaired mojibake with a note, ticker without its US exchange."""
    item = read(docs.newsml_1())
    assert (item.source, item.story, item.declared) == ("pressfeed.example", "20260918005001", 1)
    assert item.headline == "Orvelle Announces Third Quarter Results"
    assert item.body == "Orvelle\u2019s revenue rose."
    assert item.notes == ["body: mojibake"]
    assert item.instruments == ["ORVL"]


def test_each_language_of_a_press_release_is_a_story() -> None:
    """Two languages in one release are two items whose ids differ, both with its securities."""
    text = docs.newsml_1().decode()
    start = text.index("      <NewsComponent>\n        <NewsLines>")
    end = text.index("    </NewsComponent>\n  </NewsItem>")
    german = text[start:end].replace('FormalName="en"', 'FormalName="de"').replace("Announces", "meldet")
    items = read_news((text[:end] + german + text[end:]).encode(), NO_DEFAULTS, RECEIVED).items
    assert [(item.story, item.language) for item in items] == [
        ("20260918005001.en", "en"),
        ("20260918005001.de", "de"),
    ]
    assert all(item.instruments == ["ORVL"] for item in items)


def test_an_rss_entry_is_read() -> None:
    """Entities, CDATA and markup are gone, a description that repeats the title is no body, the time has its zone."""
    page = docs.rss(
        docs.rss_item(
            1,
            "Pell &amp; Sons &lt;b&gt;halts&lt;/b&gt; trading",
            more="<description><![CDATA[Pell & Sons halts trading]]></description>",
        ),
        docs.rss_item(
            2, "Pell resumes", more="<description>&lt;p&gt;At 10:30.&lt;/p&gt;&lt;p&gt;It said.&lt;/p&gt;</description>"
        ),
    )
    first, second = read_news(page, NO_DEFAULTS, RECEIVED).items
    assert (first.headline, first.body) == ("Pell & Sons halts trading", "")
    assert (second.headline, second.body) == ("Pell resumes", "At 10:30.\n\nIt said.")
    assert first.published_at_ns == FIVE_PM_CEST
    assert first.source == "harborline.example"


def test_an_atom_entry_is_read() -> None:
    """An Atom entry's update orders its versions, and its publication stays its time."""
    item = read(docs.ATOM)
    assert item.headline == "Vantor & Pell agree to merge"
    assert item.body == "Vantor and Pell agreed."
    assert item.published_at_ns == FIVE_PM_CEST
    assert item.revised_at_ns == FIVE_PM_CEST + 240 * 10**9


def test_times_without_a_zone_stay_unknown_unless_the_operator_names_it() -> None:
    """An RSS time without a zone is 0 with a note; with a configured zone it is read, and the note says so."""
    page = docs.rss(docs.rss_item(1, "Vantor cuts its dividend", at="Fri, 18 Sep 2026 11:00:00"))
    assert read(page).published_at_ns == 0
    assert read(page).notes == ["published: without_zone=Fri, 18 Sep 2026 11:00:00"]
    zoned = read(page, Defaults(zone=ZoneInfo("America/New_York")))
    assert zoned.published_at_ns == FIVE_PM_CEST
    assert zoned.notes == ["published: zone_assumed=America/New_York"]


def test_a_time_from_the_future_is_bounded() -> None:
    """A typing mistake in a year becomes the time of receipt plus the tolerance, and is noted."""
    item = read(docs.ninjs_1(versioncreated="2062-09-18T15:00:00Z"))
    assert item.published_at_ns == RECEIVED + NO_DEFAULTS.clock_ahead_ns
    assert item.notes[0].startswith("published: ahead=")


def test_edgars_list_of_filings_is_no_news() -> None:
    """EDGAR's own Atom page, which names a filing once per party, is left to the filings' formats."""
    page = docs.ATOM.replace(b"tag:harborline.example,2026:7", b"urn:tag:sec.gov,2008:accession-number=0001-26-1")
    found = parsed(page)
    assert isinstance(found.rejected, FeedError)
    assert found.rejected.kind is FeedErrorKind.UNKNOWN_FORMAT


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (docs.ninjs_1(pubstatus="canceled"), NewsStatus.KILLED),
        (docs.ninjs_1(pubstatus="withheld"), NewsStatus.KILLED),
        (docs.ninjs_3(pubStatus="canceled"), NewsStatus.KILLED),
        (docs.newsml_g2(status="stat:canceled"), NewsStatus.KILLED),
        (docs.newsml_g2(meta='<signal qcode="sig:correction"/>'), NewsStatus.CORRECTED),
        (docs.newsml_1(status="Canceled"), NewsStatus.KILLED),
        (docs.newsml_1(more='<Instruction FormalName="Kill"/>'), NewsStatus.KILLED),
        (docs.newsml_1(more='<Instruction FormalName="Correction"/>'), NewsStatus.CORRECTED),
        (json.dumps(docs.envelope("deleted")).encode(), NewsStatus.KILLED),
        (
            json.dumps({"action": "corrected", "id": "9", "headline": "Vantor raises its dividend"}).encode(),
            NewsStatus.CORRECTED,
        ),
    ],
)
def test_kills_and_corrections_are_recognised(data: bytes, status: NewsStatus) -> None:
    """Every format's way to take a story back or to correct it gives that status."""
    assert read(data).status is status


def test_a_kill_needs_no_text() -> None:
    """A deletion that carries nothing but the story's id is an item."""
    message = {"id": "m9", "data": {"action": "deleted", "id": 501, "content": {"id": 501}}}
    item = read(json.dumps(message).encode())
    assert (item.story, item.status, item.headline) == ("501", NewsStatus.KILLED, "")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (docs.ninjs_1(embargoed="2026-09-19T09:00:00"), "embargoed"),
        (docs.newsml_g2(meta="<embargoed>tomorrow</embargoed>"), "itemMeta.embargoed"),
        (docs.newsml_1(status="Embargoed"), "NewsManagement.StatusWillChange"),
    ],
)
def test_an_embargo_is_never_guessed(data: bytes, field: str) -> None:
    """An embargo whose end is unclear rejects the item: published early it could not be taken back."""
    with pytest.raises(FeedError) as caught:
        read(data)
    assert (caught.value.kind, caught.value.field) == (FeedErrorKind.AMBIGUOUS_TIME, field)


@pytest.mark.parametrize(
    "data",
    [
        docs.ninjs_1(embargoed="2026-09-19T09:00:00Z"),
        docs.newsml_g2(meta="<embargoed>2026-09-19T05:00:00-04:00</embargoed>"),
        docs.newsml_1(
            status="Embargoed",
            more="<StatusWillChange><DateAndTime>20260919T090000Z</DateAndTime></StatusWillChange>",
        ),
        json.dumps(docs.envelope(embargo="2026-09-19T09:00:00Z")).encode(),
    ],
)
def test_embargoes_are_read(data: bytes) -> None:
    """The end of an embargo comes out of every format."""
    assert read(data).embargo_until_ns == FIVE_PM_CEST + 18 * 3600 * 10**9


@pytest.mark.parametrize(
    ("data", "kind", "field"),
    [
        (b" \n ", FeedErrorKind.EMPTY, ""),
        (b"Trading halted", FeedErrorKind.UNKNOWN_FORMAT, ""),
        (b"<html><body>503</body></html>", FeedErrorKind.UNKNOWN_FORMAT, ""),
        (docs.ninjs_1()[:-20], FeedErrorKind.MALFORMED, ""),
        (docs.ninjs_1(uri="", headline="x"), FeedErrorKind.MISSING_FIELD, "id"),
        (docs.ninjs_1(headline="", body_xhtml="<p> </p>"), FeedErrorKind.NO_TEXT, "headline"),
        (docs.ninjs_1(headline="\u200b\u2060", body_xhtml=""), FeedErrorKind.NO_TEXT, "headline"),
        (docs.ninjs_1(pubstatus="maybe"), FeedErrorKind.INVALID_VALUE, "pubstatus"),
        (docs.newsml_g2()[:-10], FeedErrorKind.MALFORMED, ""),
        (docs.newsml_g2(item_class="ninat:picture"), FeedErrorKind.NO_TEXT, "itemMeta.itemClass"),
        (docs.newsml_g2(status="stat:odd"), FeedErrorKind.INVALID_VALUE, "itemMeta.pubStatus"),
        (docs.newsml_1(status="Odd"), FeedErrorKind.INVALID_VALUE, "NewsManagement.Status"),
        (docs.rss(), FeedErrorKind.NO_TEXT, ""),
        (docs.rss("<item><link>https://x.example/1</link></item>"), FeedErrorKind.NO_TEXT, "entry[1].headline"),
        (json.dumps(docs.envelope("exploded")).encode(), FeedErrorKind.INVALID_VALUE, "action"),
        (docs.ninjs_1(body_text="x" * MAX_NEWS_BYTES), FeedErrorKind.TOO_LARGE, ""),
        (b'{"uri":"x","versioncreated":"","headline":"h","a":' + b"[" * 50_000, FeedErrorKind.MALFORMED, ""),
    ],
)
def test_what_is_no_item_is_rejected_with_its_reason(data: bytes, kind: FeedErrorKind, field: str) -> None:
    """A document without an event names the kind of fault and the field, in the source's own names."""
    error = parsed(data).rejected
    assert isinstance(error, FeedError)
    assert (error.kind, error.field) == (kind, field)


def test_a_headline_is_taken_from_the_body_where_there_is_none() -> None:
    """An alert without a headline is known by the start of its text, and that is noted."""
    item = read(docs.ninjs_1(headline="", body_xhtml=f"<p>Vantor halted. {'word ' * 100}</p><p>More.</p>"))
    assert item.headline.startswith("Vantor halted. word")
    assert len(item.headline) <= 300
    assert "headline: taken_from_body" in item.notes


def test_an_item_always_fits_into_a_record() -> None:
    """A body of multi-byte characters is cut to the record limit and the cut is noted."""
    limits = Limits(record_bytes=100_000)
    item = read(docs.ninjs_1(body_text="評" * 60_000), Defaults(limits=limits))
    assert len(encode_json(item)) < limits.record_bytes
    assert "body: cut_from=60000" in item.notes


def test_ids_are_bounded_and_keep_stories_apart() -> None:
    """Very long story ids that differ at their end give different event ids that fit into a record."""
    ids = set()
    for end in ("a", "b"):
        (event,) = parsed(docs.ninjs_1(uri="https://x.example/" + "p" * 5000 + end)).items
        assert isinstance(event, NewsEvent)
        assert decode_news(encode_json(event)) == event
        ids.add(event.event_id)
    assert len(ids) == 2


def test_the_operators_source_name_wins() -> None:
    """An item cannot pass for another source where the operator named it; otherwise it is whose it says."""
    assert read(docs.ninjs_2(), Defaults(source="nordic-wire")).key.startswith("nordic-wire:")
    assert read(docs.ninjs_2(), Defaults(unnamed="check")).source == "Nordpuls"
    message = json.dumps({"id": "9", "headline": "Vantor raises its dividend"}).encode()
    assert read(message, Defaults(unnamed="check")).source == "check"


def test_a_revision_names_the_one_it_replaces() -> None:
    """A press release's second revision alone already says which event it supersedes."""
    revision = '<RevisionId PreviousRevision="1" Update="U">2</RevisionId>'
    (event,) = parsed(docs.newsml_1(revision=revision)).items
    assert isinstance(event, NewsEvent)
    assert (event.version, event.supersedes) == (2, "pressfeed.example:20260918005001:1")


def test_pushed_messages_are_read() -> None:
    """The story's id in an envelope is its content's, not the message's; securities and times come out."""
    item = read(json.dumps(docs.envelope("Updated", updated_at="2026-09-18T15:04:00Z")).encode())
    assert (item.story, item.source, item.instruments) == ("501", "vendor.example", ["BMRP"])
    assert item.body == "Brightmoor said so."
    assert item.published_at_ns == FIVE_PM_CEST
    assert item.revised_at_ns == FIVE_PM_CEST + 240 * 10**9


def test_an_event_of_ours_keeps_its_id() -> None:
    """A news event that comes back in is the same event again."""
    event = NewsEvent(
        event_id="wire:story:7:3", source="wire", headline="Pell halts", received_at_ns=RECEIVED, version=3
    )
    (found,) = parsed(encode_json(event)).items
    assert isinstance(found, NewsEvent)
    assert (found.event_id, found.version) == ("wire:story:7:3", 3)


def test_a_bad_line_leaves_the_others() -> None:
    """Of JSON Lines the feed takes every good line and names the bad ones; the checker names the first bad one."""
    lines = [
        json.dumps(docs.envelope(story=1)).encode(),
        b'{"id": "2", "headline": ""}',
        b"not json",
        docs.ninjs_2(),
        b'{"event_id":"w:1:1","source":"w","headline":"h","received_at_ns":1}',
    ]
    reading = read_news(b"\n".join(lines), NO_DEFAULTS, RECEIVED)
    assert [item.story for item in reading.items] == ["1", "http://nordpuls.example/text/260918-a1"]
    assert [number for number, _ in reading.problems] == [2, 3, 5]
    with pytest.raises(FeedError) as caught:
        json_lines_items(b"\n".join(lines), NO_DEFAULTS, RECEIVED)
    assert caught.value.field == "line[2].headline"
    with pytest.raises(DecodeError) as ours:
        json_lines_items(lines[4], NO_DEFAULTS, RECEIVED)
    assert ours.value.field == "line[1].received_at_ns"


def test_external_entities_are_not_read(tmp_path: Path) -> None:
    """A document that names a local file as an entity does not get its content, in XML or in RSS."""
    secret = tmp_path / "secret"
    secret.write_text("top-secret")
    dtd = f'<!DOCTYPE x [<!ENTITY leak SYSTEM "file://{secret}">]>'
    newsml = docs.newsml_g2().decode().replace("?>\n", f"?>{dtd}", 1).replace("Quillmark Foods", "&leak; Foods")
    page = docs.rss(docs.rss_item(1, "&leak; Foods")).decode().replace("?>", f"?>{dtd}", 1)
    for document in (newsml, page):
        found = parsed(document.encode())
        assert "top-secret" not in repr(found)
    assert "top-secret" not in repr(parsed(str(secret).encode()))


def test_ten_thousand_mutated_documents_give_items_or_a_reason() -> None:
    """Cut, repeated, spliced and overwritten documents never raise anything but a typed error, in bounded time."""
    seeds = [
        docs.ninjs_1(), docs.ninjs_2(), docs.ninjs_3(), docs.newsml_g2(), docs.newsml_1(), docs.ATOM,
        docs.rss(*(docs.rss_item(n, f"Vantor story {n}") for n in range(3))), json.dumps(docs.envelope()).encode(),
        b"\n".join(json.dumps(docs.envelope(story=n)).encode() for n in range(3)), docs.FED_STATEMENT.encode(),
        docs.ECB_STATEMENT.encode(),
    ]  # fmt: skip
    seeds += [path.read_bytes() for path in _corpus_files()]
    source = random.Random(20260918)
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(10_000):
        data = _mutated(source, source.choice(seeds), seeds)
        started = time.process_time()
        found = parsed(data)
        slowest = max(slowest, time.process_time() - started)
        outcomes["rejected" if found.rejected else "read"] += 1
        for event in found.items:
            assert isinstance(event, NewsEvent)
            assert decode_news(encode_json(event)) == event
    assert outcomes["rejected"] > 1000
    assert outcomes["read"] > 1000
    assert slowest < 5  # CPU seconds: a hang, not a slow machine; the slowest of them usually takes 0.03
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 256 * 1024  # kilobytes


def _corpus_files() -> list[Path]:
    folders = ("feeds/newsml_ninjs", "feeds/newsml_g2", "feeds/rss", "statements")
    return [path for name in folders for path in sorted((CORPUS / name).glob("*"))]


def _mutated(source: random.Random, data: bytes, seeds: list[bytes]) -> bytes:
    """A document with one to sixteen faults."""
    out = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 4, 16))):
        if len(out) < 2:
            break
        start = source.randrange(len(out))
        end = min(len(out), start + source.choice((1, 2, 8, 64, 1024)))
        fault = source.randrange(6)
        if fault == 0:
            out[start] = source.randrange(256)
        elif fault == 1:
            del out[start:end]
        elif fault == 2:
            out[start:start] = bytes(out[start:end]) * source.choice((1, 3, 50))
        elif fault == 3:
            del out[start:]
        elif fault == 4:
            out[start:start] = source.choice(
                (
                    b"<",
                    b"&",
                    b"]]>",
                    b"<![CDATA[",
                    b"\x00",
                    b"\xff\xfe",
                    b"&a;",
                    b'"',
                    b"{",
                    b"\\ud800",
                    b"<a>" * 200,
                    b"1e999",
                )
            )
        else:
            other = source.choice(seeds)
            at = source.randrange(len(other))
            out[start:end] = other[at : at + source.choice((10, 100, 1000))]
    return bytes(out)


@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus of real documents at {CORPUS} (TAPEWIRE_TEST_CORPUS)")
def test_every_news_file_of_the_corpus_is_read() -> None:
    """Every real ninjs, NewsML, RSS and statement file gives events; every other file a reason and no exception."""
    news = set(_corpus_files())
    assert len(news) >= 12
    for path in sorted(CORPUS.rglob("*")):
        if not path.is_file():
            continue
        found = parsed(path.read_bytes())
        if path in news:
            assert found.rejected is None, path
            assert found.items, path
        else:
            assert isinstance(found.rejected, FeedError), path
            assert found.rejected.kind is FeedErrorKind.UNKNOWN_FORMAT, path
