from __future__ import annotations

import pytest

from producers.edgar.xml_forms import parse_xml_form
from producers.errors import FeedError, FeedErrorKind
from tests.producers.edgar.corpus import fixture


def test_ownership_form() -> None:
    """A form 4 says in sentences who sold what, when, at which price, and what is left."""
    form = parse_xml_form(fixture("form4_2020.xml"))
    assert (form.form, form.company, form.symbols, form.period) == ("4", "Apple Inc.", ["AAPL"], "2020-10-09")
    assert form.ciks == ["0000320193", "0001513362"]
    assert form.lines[:4] == [
        "Form 4: beneficial ownership of securities of Apple Inc. (AAPL).",
        "Reporting owner: Maestri Luca (officer, Senior Vice President, CFO).",
        "Period of report: 2020-10-09.",
        "2020-10-09: disposed of 243431 Common Stock at $116.89 (open-market sale, code S) owned after: 110272 direct.",
    ]
    assert form.lines[4].startswith("Footnote F1: This transaction was made pursuant to a Rule 10b5-1")


def test_schedule_13g_that_begins_with_an_empty_line() -> None:
    """XML does not allow a line before its declaration, SEC's files have it: it is read all the same."""
    data = fixture("schedule13g_2025.xml")
    assert data.startswith(b"\n<?xml")
    form = parse_xml_form(data)
    assert (form.form, form.company) == ("SCHEDULE 13G", "Jushi Holdings Inc.")
    assert form.ciks == ["0001909747", "0002048490"]
    power = "number of shares person has. sole power or direct to vote: 10000000; shared power or direct to vote: 0; "
    assert any(line.startswith(power) for line in form.lines)
    assert "XXXXXXXX" not in "\n".join(form.lines)


def test_derivative_with_indirect_ownership() -> None:
    """An option row names what it is on and its price; indirect ownership names its nature."""
    body = b"""<ownershipDocument><documentType>4/A</documentType>
    <dateOfOriginalSubmission>2026-01-05</dateOfOriginalSubmission>
    <issuer><issuerCik>5</issuerCik><issuerName>Example Inc</issuerName>
    <issuerTradingSymbol>none</issuerTradingSymbol></issuer>
    <derivativeTable><derivativeTransaction><securityTitle><value>Option</value></securityTitle>
    <conversionOrExercisePrice><value>2.5</value></conversionOrExercisePrice>
    <transactionDate><value>2026-01-02</value></transactionDate>
    <transactionCoding><transactionCode>A</transactionCode></transactionCoding>
    <transactionAmounts><transactionShares><value>9</value></transactionShares>
    <transactionAcquiredDisposedCode><value>A</value></transactionAcquiredDisposedCode></transactionAmounts>
    <underlyingSecurity><underlyingSecurityTitle><value>Common</value></underlyingSecurityTitle>
    <underlyingSecurityShares><value>9</value></underlyingSecurityShares></underlyingSecurity>
    <ownershipNature><directOrIndirectOwnership><value>I</value></directOrIndirectOwnership>
    <natureOfOwnership><value>By Trust</value></natureOfOwnership></ownershipNature>
    </derivativeTransaction></derivativeTable></ownershipDocument>"""
    form = parse_xml_form(body)
    assert form.symbols == []
    assert form.lines[1:] == [
        "Amends the form submitted on 2026-01-05.",
        "2026-01-02: acquired 9 Option (grant or award, code A) on 9 Common, exercise price $2.5 indirect (By Trust).",
    ]


def test_holdings_of_a_13f() -> None:
    """Each position of an information table is one line."""
    body = b"""<?xml version="1.0"?><n:informationTable xmlns:n="http://www.sec.gov/edgar/document/thirteenf">
    <n:infoTable><n:nameOfIssuer>EXAMPLE INC</n:nameOfIssuer><n:titleOfClass>COM</n:titleOfClass>
    <n:cusip>123456789</n:cusip><n:value>5000</n:value>
    <n:shrsOrPrnAmt><n:sshPrnamt>10</n:sshPrnamt><n:sshPrnamtType>SH</n:sshPrnamtType></n:shrsOrPrnAmt>
    <n:putCall>Put</n:putCall></n:infoTable></n:informationTable>"""
    assert parse_xml_form(body).lines == ["EXAMPLE INC COM (CUSIP 123456789) Put: value $5000, 10 SH"]


@pytest.mark.parametrize(
    "body",
    [
        b"<ownershipDocument><a></ownershipDocument>",
        b"",
        b"<ownershipDocument",
        b"\xff\xfe<",
    ],
)
def test_what_is_not_well_formed_is_a_typed_error(body: bytes) -> None:
    """Broken XML is malformed input, named as such."""
    with pytest.raises(FeedError) as caught:
        parse_xml_form(body)
    assert caught.value.kind is FeedErrorKind.MALFORMED


def test_entities_are_never_resolved() -> None:
    """Neither a file nor an exploding entity of a hostile document becomes text."""
    body = b"""<!DOCTYPE r [<!ENTITY f SYSTEM "file:///etc/passwd"><!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>
    <edgarSubmission><x>&f;</x><y>&b;</y><z>plain</z></edgarSubmission>"""
    assert parse_xml_form(body).lines == ["edgar submission. z: plain"]
