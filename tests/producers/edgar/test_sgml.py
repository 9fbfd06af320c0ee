from __future__ import annotations

import pytest

from producers.edgar.sgml import DOCUMENTS_MOST, looks_like, split
from tests.producers.edgar.corpus import fixture


def test_pem_wrapper_and_its_dashes_are_removed() -> None:
    """The privacy-enhanced wrapper of the 1990s goes, and lines it had escaped with "- " read as they were filed."""
    submission = split(fixture("8-K_1998_pem.txt"))
    body = b"".join(document.body for document in submission.documents())
    assert submission.header.startswith(b"<SEC-DOCUMENT>")
    assert b"- -----" not in body
    assert b"END PRIVACY" not in body


def test_documents_of_a_modern_submission() -> None:
    """Every document is found with its type and place; the picture's bytes are skipped as binary."""
    documents = list(split(fixture("8-K_2024_inline_xbrl.txt")).documents())
    assert [(d.type, d.sequence, d.binary) for d in documents] == [
        ("8-K", 1, False),
        ("EX-99.1", 2, False),
        ("EXCEL", 9, True),
        ("XML", 7, False),
    ]
    assert documents[0].filename == "mmm-20240308.htm"
    assert not documents[0].body.lstrip().startswith(b"<XBRL>")
    assert documents[2].body == b""


def test_carriage_returns_alone_separate_lines() -> None:
    """Dissemination files use CR; their documents and names come out as from the same file with LF."""
    with_lf = (
        b"<SUBMISSION>\n<TYPE>4\n<DOCUMENT>\n<TYPE>4\n<SEQUENCE>1\n<TEXT>\nhello\n</TEXT>\n</DOCUMENT>\n</SUBMISSION>\n"
    )
    with_cr = with_lf.replace(b"\n", b"\r")
    assert list(split(with_cr).documents()) == list(split(with_lf).documents())


def test_unclosed_tags_end_at_the_next_document() -> None:
    """A document whose TEXT and DOCUMENT are never closed ends where the next one begins."""
    data = b"<DOCUMENT>\n<TYPE>8-K\n<TEXT>\none\n<DOCUMENT>\n<TYPE>EX-99\n<SEQUENCE>x\n<TEXT>\ntwo"
    first, second = split(data).documents()
    assert (first.body.strip(), second.body.strip()) == (b"one", b"two")
    assert second.sequence == 2


def test_text_that_mentions_a_document_tag_is_not_cut() -> None:
    """The word in the middle of a line is text: only a tag on its own line opens a document."""
    data = b"<DOCUMENT>\n<TYPE>8-K\n<TEXT>\nuse the <DOCUMENT> tag\n</TEXT>\n</DOCUMENT>\n"
    documents = list(split(data).documents())
    assert len(documents) == 1
    assert b"tag" in documents[0].body


def test_uuencoded_body_without_wrapper_is_binary() -> None:
    """A body that begins as uuencode is no text, whatever its type says."""
    (document,) = split(b"<DOCUMENT>\n<TYPE>EX-99.1\n<TEXT>\nbegin 644 a.jpg\nM1234\n`\nend\n</TEXT>\n").documents()
    assert document.binary
    assert document.body == b""


def test_hostile_number_of_documents_is_bounded() -> None:
    """A file of nothing but document tags gives a bounded number of documents."""
    data = b"<DOCUMENT>\n<TYPE>X\n<TEXT>\nx\n" * (DOCUMENTS_MOST + 100)
    assert len(list(split(data).documents())) == DOCUMENTS_MOST


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"<SEC-DOCUMENT>0000320193-24-000123.txt : 20240101\n", True),
        (b"-----BEGIN PRIVACY-ENHANCED MESSAGE-----\nProc-Type: x\n\n<IMS-DOCUMENT>a\n", True),
        (b"\n<DOCUMENT>\n<TYPE>6-K\n", True),
        (b"<SUBMISSION>\r<TYPE>4\r", True),
        (b"<DOCUMENT>\nno type follows", False),
        (b"a story about <SEC-HEADER> tags", False),
        (b"<html><body>8-K</body></html>", False),
    ],
)
def test_submissions_are_told_by_their_start(head: bytes, expected: bool) -> None:
    """What a file is shows in its first tags, not in its name."""
    assert looks_like(head) is expected
