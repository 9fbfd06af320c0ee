from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from ops.bench.made_filings import submission
from producers.edgar.filing import UNKNOWN_FORM, parse_document, parse_filing
from producers.errors import FeedError, FeedErrorKind
from schemas.codec import decode_filing, encode_json
from tests.producers.edgar.corpus import CONTEXT, fixture


def test_current_report_with_its_press_release() -> None:
    """A modern 8-K gives its sections and its exhibit, items of header and body together, and its symbols."""
    filing = parse_filing(fixture("8-K_2024_inline_xbrl.txt"), CONTEXT)
    assert filing.header.items == ("8.01",)
    assert filing.items == ["8.01", "9.01"]
    events = filing.events(CONTEXT)
    assert [(event.event_id, event.section) for event in events] == [
        ("0000066740-24-000023:1:1", "Cover page"),
        ("0000066740-24-000023:1:2", "Item 8.01 Other Events"),
        ("0000066740-24-000023:1:3", "Item 9.01 Financial Statements and Exhibits"),
        ("0000066740-24-000023:1:4", "Signatures"),
        ("0000066740-24-000023:2:5", "EX-99.1"),
    ]
    assert {event.parts for event in events} == {5}
    assert events[0].instruments[0] == "MMM"
    assert events[0].accepted_at_ns == 1_709_917_305_000_000_000
    assert "us-gaap" not in events[0].text
    for event in events:
        assert decode_filing(encode_json(event)) == event


def test_same_filing_from_both_containers() -> None:
    """The ``.nc`` and the ``.txt`` of one filing give equal events but for the time that only the ``.txt`` states."""
    txt, nc = (parse_filing(fixture(f"SC-TO-T-A_2025.{kind}"), CONTEXT).events(CONTEXT) for kind in ("txt", "nc"))
    assert [msgspec.structs.replace(event, accepted_at_ns=0) for event in txt] == nc
    assert {event.accepted_at_ns for event in txt} == {1_736_547_338_000_000_000}
    assert nc[0].company == "CVR ENERGY INC"


def test_old_item_under_its_old_title() -> None:
    """A 2005 filing's header names item 5.02 by the title that it had then."""
    filing = parse_filing(fixture("8-K_2005_pem.txt"), CONTEXT)
    assert filing.items == ["5.02"]
    assert filing.header.items == ("5.02",)
    assert filing.pieces[1].section.startswith("Item 5.02 Departure of Directors or Principal Officers")


def test_one_digit_item_from_the_body() -> None:
    """A 1998 filing whose header names no item has it in its text, with one digit."""
    filing = parse_filing(fixture("8-K_1998_pem.txt"), CONTEXT)
    assert filing.header.items == ()
    assert filing.items == ["7"]
    assert [event.section for event in filing.events(CONTEXT)][-1] == "EX-20.1 STATEMENT TO CERTIFICATEHOLDERS"


def test_annual_report_of_1994() -> None:
    """Plain text with page marks is cut at its items; marks of pages and tables are no text."""
    events = parse_filing(fixture("10-K_1994_ims.txt"), CONTEXT).events(CONTEXT)
    assert [event.section for event in events] == ["Cover page", "Item 1 Business", "Item 2 Properties"]
    assert "<PAGE>" not in "".join(event.text for event in events)


def test_tickers_of_the_map_follow_those_of_the_filing() -> None:
    """Instruments are what the filing states, then what the map knows for the companies it is about."""
    tickers = {"0000066740": ["MMM", "MMM.X"], "0001034563": ["IEP"]}
    context = replace(CONTEXT, tickers=tickers)
    events = parse_filing(fixture("8-K_2024_inline_xbrl.txt"), context).events(context)
    assert events[0].instruments[0] == "MMM"
    assert events[0].instruments[-1] == "MMM.X"
    tender = parse_filing(fixture("SC-TO-T-A_2025.txt"), context).events(context)
    assert tender[0].instruments == []  # the bidder's own ticker is not what the filing moves


def test_parts_are_bounded() -> None:
    """No part is over its bound; parts past the most of a filing are counted, not silently dropped."""
    context = replace(CONTEXT, part_chars=500, parts_most=3)
    filing = parse_filing(fixture("8-K_2024_inline_xbrl.txt"), context)
    assert len(filing.pieces) == 3
    assert filing.left_out > 0
    assert all(len(event.text) <= 500 for event in filing.events(context))


def test_amendment_keeps_its_form_and_its_link() -> None:
    """An ``/A`` form stays one, its items are read, and its events name what it amends."""
    data = submission("0009990001-26-000002", form="8-K/A")
    filing = parse_filing(data, CONTEXT)
    events = filing.events(CONTEXT, "0009990001-26-000001")
    assert filing.items == ["8.01"]
    assert {(event.form, event.amends) for event in events} == {("8-K/A", "0009990001-26-000001")}


@pytest.mark.parametrize("form", ["6-K", "S-1", "424B5", "20-F", "DEF 14A"])
def test_other_forms_are_read(form: str) -> None:
    """Forms without numbered sections give their text under their own name."""
    events = parse_filing(submission("0009990001-26-000003", form=form), CONTEXT).events(CONTEXT)
    assert [(event.form, event.section) for event in events] == [(form, "")]


def test_document_without_header() -> None:
    """One document with its tags alone has its type as form and an id from its content, always the same."""
    data = b"<DOCUMENT>\n<TYPE>EX-99.1\n<SEQUENCE>2\n<TEXT>\n<html><p>Sales rose.</p></html>\n</TEXT>\n</DOCUMENT>\n"
    first, second = (parse_filing(data, CONTEXT).events(CONTEXT) for _ in range(2))
    assert first == second
    assert (first[0].form, first[0].section, first[0].text) == ("EX-99.1", "EX-99.1", "Sales rose.")
    assert first[0].accession.startswith("content-")


def test_accession_from_the_address() -> None:
    """Without a header the address that the document came from gives its accession."""
    context = replace(CONTEXT, url="https://example.com/Archives/edgar/data/1/0000320193-24-000123.txt")
    data = b"<DOCUMENT>\n<TYPE>8-K\n<TEXT>\nItem 5. Other Events\nSomething.\n</TEXT>\n</DOCUMENT>\n"
    assert parse_filing(data, context).header.accession == "0000320193-24-000123"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("<p>UNITED STATES</p><p>SECURITIES AND EXCHANGE COMMISSION</p><p>FORM 10-Q</p><p>Text.</p>", "10-Q"),
        ("<p>SCHEDULE 13D/A</p><p>Text.</p>", "SC 13D/A"),
        ("<p>Nothing says what this is.</p>", UNKNOWN_FORM),
    ],
)
def test_form_of_a_bare_document(text: str, form: str) -> None:
    """A bare document's form is the one its cover prints."""
    assert parse_document(text.encode(), CONTEXT).header.form == form


def test_ownership_inside_a_submission() -> None:
    """The XML of a form 4 inside its submission becomes sentences with the symbol as instrument."""
    xml = fixture("form4_2020.xml").decode()
    data = (
        "<SEC-DOCUMENT>0000320193-20-000001.txt : 20201013\n<SEC-HEADER>x\n<ACCEPTANCE-DATETIME>20201013183000\n"
        "ACCESSION NUMBER:\t\t0000320193-20-000001\nCONFORMED SUBMISSION TYPE:\t4\n</SEC-HEADER>\n"
        f"<DOCUMENT>\n<TYPE>4\n<SEQUENCE>1\n<TEXT>\n<XML>\n{xml}\n</XML>\n</TEXT>\n</DOCUMENT>\n</SEC-DOCUMENT>\n"
    ).encode()
    (event,) = parse_filing(data, CONTEXT).events(CONTEXT)
    assert (event.form, event.company, event.instruments) == ("4", "Apple Inc.", ["AAPL"])
    assert event.ciks == ["0000320193", "0001513362"]
    assert event.text.startswith("Form 4: beneficial ownership of securities of Apple Inc. (AAPL).")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"<p>It\x92s \x93good\x94 \x80 5</p>", "It\u2019s \u201cgood\u201d \u20ac 5"),  # Windows-1252
        ("<p>caf\u00e9 \u2014</p>".encode(), "caf\u00e9 \u2014"),
        (b"\xef\xbb\xbf<p>mark</p>", "mark"),
        (b"<p>It&#146;s</p>", "It\u2019s"),  # a reference to a Windows code
        ("<p>e\u0301 ze\u200bro</p>".encode(), "\u00e9 zero"),
    ],
)
def test_encodings(body: bytes, text: str) -> None:
    """UTF-8 and Windows-1252 are told apart, code references of Windows are mended, and the result is clean NFC."""
    assert parse_document(body, CONTEXT).pieces[0].text == text


def test_removed_characters_are_recorded() -> None:
    """What cleaning took out of a document's text stands in the notes of its parts."""
    events = parse_document("<p>ze\u200bro</p>".encode(), CONTEXT).events(CONTEXT)
    assert events[0].notes == ["text: invisible=1"]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"<SEC-DOCUMENT>x\n<SEC-HEADER>\nACCESSION NUMBER: 0000000001-26-000001\n", FeedErrorKind.MALFORMED),
        (b"<DOCUMENT>\n<TYPE>GRAPHIC\n<TEXT>\nbegin 644 a.jpg\nM\nend\n</TEXT>\n</DOCUMENT>\n", FeedErrorKind.NO_TEXT),
        (b"<DOCUMENT>\n<TYPE>8-K\n<TEXT>\n<html><p>&nbsp;</p></html>\n</TEXT>\n</DOCUMENT>\n", FeedErrorKind.NO_TEXT),
        (b"<DOCUMENT>\n<TYPE>4\n<TEXT>\n<XML>\n<ownershipDocument><a>\n</XML>\n</TEXT>\n", FeedErrorKind.MALFORMED),
    ],
)
def test_rejections_are_typed(data: bytes, kind: FeedErrorKind) -> None:
    """A submission that holds nothing to read is rejected with the reason."""
    with pytest.raises(FeedError) as caught:
        parse_filing(data, CONTEXT)
    assert caught.value.kind is kind


def test_one_broken_document_does_not_take_the_others() -> None:
    """A malformed XML exhibit beside a good document costs itself alone."""
    data = (
        b"<DOCUMENT>\n<TYPE>SC 13G\n<TEXT>\n<XML>\n<edgarSubmission><a>\n</XML>\n</TEXT>\n</DOCUMENT>\n"
        b"<DOCUMENT>\n<TYPE>EX-99\n<TEXT>\n<html><p>Good.</p></html>\n</TEXT>\n</DOCUMENT>\n"
    )
    assert [piece.text for piece in parse_filing(data, CONTEXT).pieces] == ["Good."]
