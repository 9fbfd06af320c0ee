from __future__ import annotations

from dataclasses import replace

from producers.edgar.header import Header, Party, parse_header
from producers.edgar.sgml import split
from tests.producers.edgar.corpus import fixture


def _header_of(name: str) -> Header:
    return parse_header(split(fixture(name)).header)


def test_labels_of_a_modern_header() -> None:
    """The label dialect gives accession, form, UTC acceptance, dates, items as codes and the filer."""
    assert _header_of("8-K_2024_inline_xbrl.txt") == Header(
        accession="0000066740-24-000023",
        form="8-K",
        accepted_at_ns=1_709_917_305_000_000_000,
        filed="2024-03-08",
        period="2024-03-08",
        items=("8.01",),
        parties=(Party(role="filer", cik="0000066740", name="3M CO", form="8-K", file_number="001-03285"),),
    )


def test_both_dialects_say_the_same() -> None:
    """One filing's header reads alike from labels and from tags, but for the acceptance time, which tags lack."""
    labels, tags = _header_of("SC-TO-T-A_2025.txt"), _header_of("SC-TO-T-A_2025.nc")
    assert labels.accepted_at_ns == 1_736_547_338_000_000_000
    assert tags == replace(labels, accepted_at_ns=0)


def test_subject_comes_before_who_filed() -> None:
    """Of a subject listed under two forms and the party that filed, the subject is what the filing is about."""
    header = _header_of("SC-TO-T-A_2025.txt")
    assert [party.role for party in header.parties] == ["subject", "subject", "filed_by"]
    assert [party.form for party in header.parties] == ["SC 13D/A", "SC TO-T/A", "SC TO-T/A"]
    assert [party.name for party in header.subjects] == ["CVR ENERGY INC"]
    assert header.ciks == ["0001376139", "0001034563"]


def test_ims_header_of_1994() -> None:
    """The IMS header of the first years has no acceptance time; everything else is there."""
    header = _header_of("10-K_1994_ims.txt")
    assert (header.accession, header.form, header.filed) == ("0000320193-94-000016", "10-K", "1994-12-13")
    assert header.accepted_at_ns == 0


def test_empty_item_line_is_no_section() -> None:
    """An ITEM INFORMATION line without a value gives no item, and what follows it is still read."""
    header = _header_of("8-K_1998_pem.txt")
    assert header.items == ()
    assert header.filed == "1998-12-31"


def test_several_owners_and_an_issuer() -> None:
    """An ownership filing names its issuer first, whatever the order of the header."""
    raw = b"""<SEC-HEADER>0000000001-26-000001.hdr.sgml : 20260102
ACCESSION NUMBER:\t\t0000000001-26-000001
CONFORMED SUBMISSION TYPE:\t4

REPORTING-OWNER:

\tOWNER DATA:
\t\tCOMPANY CONFORMED NAME:\t\t\tDOE JANE
\t\tCENTRAL INDEX KEY:\t\t\t0000000007

REPORTING-OWNER:

\tOWNER DATA:
\t\tCOMPANY CONFORMED NAME:\t\t\tDOE FAMILY TRUST
\t\tCENTRAL INDEX KEY:\t\t\t0000000008

ISSUER:

\tCOMPANY DATA:
\t\tCOMPANY CONFORMED NAME:\t\t\tEXAMPLE INC
\t\tCENTRAL INDEX KEY:\t\t\t9

\tFORMER COMPANY:
\t\tFORMER CONFORMED NAME:\tOLD NAME INC
"""
    header = parse_header(raw)
    assert [party.name for party in header.subjects] == ["EXAMPLE INC"]
    assert header.ciks == ["0000000009", "0000000007", "0000000008"]


def test_flattened_tags() -> None:
    """Tags on one line, none of the data tags closed, read as tags on lines of their own."""
    raw = (
        b"<SUBMISSION><ACCESSION-NUMBER>0000000001-26-000002<TYPE>8-K<ITEMS>2.02<ITEMS>9.01"
        b"<FILING-DATE>20260105<FILER><COMPANY-DATA><CONFORMED-NAME>A & B CO<CIK>0000000005</COMPANY-DATA>"
        b"<FILING-VALUES><FORM-TYPE>8-K</FILING-VALUES></FILER>"
    )
    header = parse_header(raw)
    assert (header.items, header.parties[0].name, header.parties[0].form) == (("2.02", "9.01"), "A & B CO", "8-K")


def test_accession_from_the_file_line() -> None:
    """A header without its accession line still has it in its first tag."""
    assert parse_header(b"<SEC-DOCUMENT>0000000001-26-000003.txt : 20260105\n").accession == "0000000001-26-000003"


def test_no_header() -> None:
    """An empty header is an empty value, no error."""
    assert parse_header(b"") == Header()
