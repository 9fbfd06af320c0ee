from __future__ import annotations

import json

import pytest

from producers.edgar.amendments import original_in
from producers.edgar.header import Header, Party
from producers.edgar.listing import (
    parse_current,
    parse_index,
    parse_submissions,
    parse_tickers,
    submission_url,
)
from producers.edgar.pages import SecPage, judge, sec_page
from producers.errors import FeedError, FeedErrorKind
from tests.producers.edgar.corpus import fixture


def test_current_page() -> None:
    """Entries give accession, form, company, items, time and the address of the whole submission."""
    page = parse_current(fixture("current_2025.atom.xml"))
    assert page.entries == 7
    first = page.listed[0]
    assert (first.accession, first.form, first.company) == ("0001213900-25-121293", "8-K", "Twenty One Capital, Inc.")
    assert first.items[:2] == ["1.01", "2.01"]
    assert first.updated_ns == 1_765_578_205_000_000_000
    assert first.url.endswith("/000121390025121293/0001213900-25-121293.txt")
    assert first.filed == "2025-12-12"


def test_one_filing_listed_for_several_parties() -> None:
    """Entries of one accession become one filing with the CIKs of all its parties."""
    page = parse_current(fixture("current_2025.atom.xml"))
    accessions = [listed.accession for listed in page.listed]
    assert len(accessions) == len(set(accessions)) == 6
    assert max(len(listed.ciks) for listed in page.listed) == 2


@pytest.mark.parametrize("name", ["error_503.html", "error_rate.html"])
def test_pages_of_the_web_server_are_no_feed(name: str) -> None:
    """An HTML page in place of the feed is malformed, never an empty feed."""
    with pytest.raises(FeedError) as caught:
        parse_current(fixture(name))
    assert caught.value.kind is FeedErrorKind.MALFORMED


def test_feed_with_another_root_is_refused() -> None:
    """Well-formed XML that is no Atom feed is no empty feed either."""
    with pytest.raises(FeedError):
        parse_current(b"<rss><channel/></rss>")


def test_error_pages_are_told_apart() -> None:
    """Each page of SEC's says what it is; text that mentions one is none."""
    assert sec_page(fixture("error_503.html")) is SecPage.UNAVAILABLE
    assert sec_page(fixture("error_rate.html")) is SecPage.RATE_LIMIT
    assert sec_page(
        b"<html><head><title>SEC.gov | Your Request Originates from an Undeclared Automated Tool</title>"
    ) is (SecPage.UNDECLARED)
    assert sec_page(b"a story about the request rate threshold exceeded page") is None
    assert sec_page(b"<html><head><title>Press release</title></head></html>") is None


def test_only_refusals_pause() -> None:
    """The rate limit page and 429 mean a pause; maintenance, which is also the end of the feed, does not."""
    look = judge(600.0)
    refusal = look(403, fixture("error_rate.html"))
    assert refusal is not None
    assert refusal.seconds == 600.0
    assert look(429, b"slow down") is not None
    assert look(503, fixture("error_503.html")) is None


def test_index_with_bars() -> None:
    """A master index gives each accession once, with all its CIKs."""
    text = (
        b"Description:           Daily Index of EDGAR Dissemination Feed\n\n"
        b"CIK|Company Name|Form Type|Date Filed|File Name\n"
        b"-----\n1000045|EXAMPLE ONE|10-Q|20251212|edgar/data/1000045/0000950170-25-000123.txt\n"
        b"1000046|EXAMPLE TWO|10-Q|20251212|edgar/data/1000046/0000950170-25-000123.txt\n"
    )
    (listed,) = parse_index(text)
    assert (listed.accession, listed.form, listed.filed) == ("0000950170-25-000123", "10-Q", "2025-12-12")
    assert listed.ciks == ["0001000045", "0001000046"]
    assert listed.url == submission_url("0001000045", "0000950170-25-000123")


def test_index_in_columns() -> None:
    """The form index, in columns, gives the same."""
    line = (
        b"SC 13G/A       EXAMPLE CORP            320193      2025-12-12  edgar/data/320193/0000950170-25-000124.txt\n"
    )
    (listed,) = parse_index(line)
    assert (listed.form, listed.filed, listed.ciks) == ("SC 13G/A", "2025-12-12", ["0000320193"])


def test_index_without_filings_is_refused() -> None:
    """A page that names no filing is not taken for an empty day."""
    with pytest.raises(FeedError):
        parse_index(fixture("error_503.html"))


def test_tickers() -> None:
    """The map gives every ticker of a CIK, in the file's order."""
    data = b'{"0":{"cik_str":5,"ticker":"GOOGL","title":"A"},"1":{"cik_str":5,"ticker":"goog","title":"A"}}'
    assert parse_tickers(data) == {"0000000005": ["GOOGL", "GOOG"]}
    with pytest.raises(FeedError):
        parse_tickers(b"[]")


def _submissions(*rows: tuple[str, str, str, str, str]) -> bytes:
    names = ("accessionNumber", "form", "filingDate", "reportDate", "fileNumber")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    return json.dumps({"cik": "5", "name": "Example", "filings": {"recent": columns}}).encode()


def test_amendment_is_linked_by_its_period() -> None:
    """A 10-Q/A amends the 10-Q of its own period, not the newest one."""
    listed = parse_submissions(
        _submissions(
            ("0000000005-26-000009", "10-Q/A", "2026-06-01", "2026-03-31", "001-1"),
            ("0000000005-26-000008", "10-Q", "2026-05-20", "2026-06-30", "001-1"),
            ("0000000005-26-000007", "10-Q", "2026-05-01", "2026-03-31", "001-1"),
        )
    )
    header = Header(accession="0000000005-26-000009", form="10-Q/A", filed="2026-06-01", period="2026-03-31")
    assert original_in(header, listed) == "0000000005-26-000007"


def test_amendment_without_period_is_linked_by_its_file_number() -> None:
    """A 13D/A has no period; the newest 13D under its file number before it is what it amends."""
    listed = parse_submissions(
        _submissions(
            ("0000000005-26-000004", "SC 13D", "2026-02-01", "", "005-2"),
            ("0000000005-26-000003", "SC 13D", "2026-01-05", "", "005-1"),
            ("0000000005-25-000002", "SC 13D", "2025-01-05", "", "005-1"),
        )
    )
    party = Party(role="subject", cik="0000000005", file_number="005-1")
    header = Header(accession="0000000005-26-000005", form="SC 13D/A", filed="2026-03-01", parties=(party,))
    assert original_in(header, listed) == "0000000005-26-000003"


def test_amendment_whose_original_is_not_listed() -> None:
    """No link is better than a wrong one: another period's report is not what is amended."""
    listed = parse_submissions(_submissions(("0000000005-26-000007", "10-Q", "2026-05-01", "2026-03-31", "001-1")))
    header = Header(accession="0000000005-26-000009", form="10-Q/A", filed="2026-06-01", period="2025-12-31")
    assert original_in(header, listed) == ""
    assert original_in(Header(accession="x", form="10-Q"), listed) == ""


def test_broken_company_list_is_refused() -> None:
    """Columns of different lengths are malformed."""
    with pytest.raises(FeedError):
        parse_submissions(b'{"cik":"5","name":"x","filings":{"recent":{"accessionNumber":["a"],"form":[]}}}')
