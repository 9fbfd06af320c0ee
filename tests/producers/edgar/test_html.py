from __future__ import annotations

import pytest

from producers.edgar.html import TABLE_DEPTH_MOST, html_lines


@pytest.mark.parametrize(
    "hidden",
    [
        "<div style='display:none'><ix:header><ix:hidden>{}</ix:hidden></ix:header></div>",
        "<ix:header>{}</ix:header>",
        "<p style='color:red; DISPLAY : NONE'>{}</p>",
        "<div style='visibility: hidden'><table><tr><td>{}</td></tr></table></div>",
        "<script>{}</script>",
        "<style>{}</style>",
        "<!-- {} -->",
        "<title>{}</title>",
    ],
)
def test_what_nobody_sees_is_no_text(hidden: str) -> None:
    """Hidden facts, scripts, styles, comments and titles stay out, and what follows them is still read."""
    assert html_lines(f"<html><body>{hidden.format('secret')}<p>shown</p></body></html>").lines == ["shown"]


def test_inline_facts_stay_in_their_sentence() -> None:
    """A visible inline XBRL fact is part of its sentence."""
    document = '<p>Net sales were <ix:nonFraction name="a" contextRef="c">12</ix:nonFraction> million.</p>'
    assert html_lines(document).lines == ["Net sales were 12 million."]


def test_cover_facts_are_collected_even_when_hidden() -> None:
    """Symbol, form and CIK are taken from the facts, wherever they stand."""
    document = (
        '<ix:header><ix:hidden><ix:nonNumeric name="dei:EntityCentralIndexKey">0000885245</ix:nonNumeric></ix:hidden>'
        '</ix:header><p>Symbol: <ix:nonNumeric name="dei:TradingSymbol"><b>B</b>KE</ix:nonNumeric></p>'
    )
    found = html_lines(document)
    assert found.facts == {"cik": ["0000885245"], "symbol": ["BKE"]}
    assert found.lines == ["Symbol: BKE"]


def test_blocks_break_lines_and_inline_elements_do_not() -> None:
    """Paragraphs and breaks end a line, spans and bold do not; blanks of every kind become one."""
    document = "<p>one<b>two</b> three&nbsp;&nbsp;four<br>five</p>six"
    assert html_lines(document).lines == ["onetwo three four", "five", "six"]


def test_preformatted_text_keeps_its_lines() -> None:
    """Text in PRE keeps line breaks and the blanks that align it."""
    assert html_lines("<pre>a   1\nbb  2\n</pre>").lines == ["a   1", "bb  2"]


def test_entities() -> None:
    """Named and numeric entities are their characters."""
    assert html_lines("<p>R&amp;D &#8212; &euro;5 &lt;b&gt;</p>").lines == ["R&D \u2014 \u20ac5 <b>"]


def test_nested_tables() -> None:
    """A table inside a cell is read where it stands."""
    document = (
        "<table><tr><td>Outer</td><td><table><tr><td></td><td>2026</td><td>2025</td></tr>"
        "<tr><td>Cash</td><td>5</td><td>4</td></tr></table></td></tr></table>after"
    )
    assert html_lines(document).lines == ["Outer | Cash: 2026 5; 2025 4", "after"]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("<table><tr><td>a<td>b<tr><td>c", ["a | b", "c"]),
        ("</td></tr></table><p>text", ["text"]),
        ("<p>cut in the midd", ["cut in the midd"]),
        ("<td>no table</td>", ["no table"]),
        ("plain text", ["plain text"]),
        ("", []),
        ("<!-- only a comment -->", []),
        ("a\x00b", ["ab"]),
    ],
)
def test_malformed_documents(document: str, expected: list[str]) -> None:
    """Unclosed, unopened, cut and empty markup gives the text there is and never an error."""
    assert html_lines(document).lines == expected


def test_deep_nesting_is_bounded() -> None:
    """Ten thousand elements and tables inside each other end neither in a crash nor without their text."""
    assert TABLE_DEPTH_MOST < 1_000
    assert html_lines("<div>" * 10_000 + "deep").lines == ["deep"]
    nested = html_lines("<table><tr><td>" * 10_000 + "deep" + "</td></tr></table>" * 10_000 + "<p>after").lines
    assert nested == ["deep", "after"]
