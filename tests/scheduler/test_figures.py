"""Key figures: quoted exactly, with the right value, unit and metric; bounded and linear on any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.figures import MOST_FIGURES, MOST_SEEN, key_figures
from scheduler.slabs import SLAB_CHARS

RESULTS = """Item 2.02. Results of Operations and Financial Condition

Net sales rose 18 percent to $412.6 million from $349.7 million. Net income was US$52.1 million, and diluted earnings \
per share were $1.31, compared with $0.94 a year earlier. Gross margin was 45.2%. The board declared a quarterly \
dividend of $0.25 per share and recorded a $75 million impairment charge.

For the full year the company expects revenue of $1.6 to $1.7 billion and earnings of $5.10 to $5.30 per share."""


def _found(text: str) -> list[tuple[str, str, float, str]]:
    return [(f.metric, f.unit, f.value, f.span.quote) for f in key_figures(text, 1)]


def test_the_figures_of_an_earnings_release() -> None:
    """Metric, unit and value of each figure in order, as a reader of the text would note them."""
    assert _found(RESULTS) == [
        ("revenue", "percent", 18.0, "18 percent"),
        ("revenue", "usd", 412_600_000.0, "$412.6 million"),
        ("revenue", "usd", 349_700_000.0, "$349.7 million"),
        ("net_income", "usd", 52_100_000.0, "US$52.1 million"),
        ("eps_diluted", "usd_per_share", 1.31, "$1.31"),
        ("eps_diluted", "usd_per_share", 0.94, "$0.94"),
        ("gross_margin", "percent", 45.2, "45.2%"),
        ("dividend", "usd_per_share", 0.25, "$0.25"),
        ("impairment", "usd", 75_000_000.0, "$75 million"),
        ("guidance_revenue", "usd", 1_600_000_000.0, "$1.6"),
        ("guidance_revenue", "usd", 1_700_000_000.0, "$1.7 billion"),
        ("guidance_eps", "usd_per_share", 5.1, "$5.10"),
        ("guidance_eps", "usd_per_share", 5.3, "$5.30"),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [(text, list(found)) for text, *found in [
        ("Revenue was $1.2B.", ("revenue", "usd", 1.2e9, "$1.2B")),
        ("Revenue was $300K.", ("revenue", "usd", 3e5, "$300K")),
        ("Revenue of $1,234,567.89 in June", ("revenue", "usd", 1_234_567.89, "$1,234,567.89")),
        ("Sales: EUR 5.5 bn in total", ("revenue", "eur", 5.5e9, "EUR 5.5 bn") ),
        ("turnover of £3 million", ("revenue", "gbp", 3e6, "£3 million")),
        ("Net loss per share of $(0.15) in the quarter", ("eps", "usd_per_share", -0.15, "$(0.15)")),
        ("Basic EPS of $.07 this time", ("eps_basic", "usd_per_share", 0.07, "$.07")),
        ("a $90\nmillion write-down", ("impairment", "usd", 9e7, "$90\nmillion")),
        ("net loss of HK$40-million", ("net_loss", "hkd", 4e7, "HK$40-million")),
        ("Operating margin fell to -3.5%.", ("operating_margin", "percent", -3.5, "-3.5%")),
        ("The guidance: 7 % growth", ("guidance", "percent", 7.0, "7 %")),
        ("Revenue of $75-90 million", ("revenue", "usd", 75e6, "$75"), ("revenue", "usd", 90e6, "90 million")),
        ("A fund of $2 billion was set up.", ("", "usd", 2e9, "$2 billion")),
    ]],
)  # fmt: skip
def test_ways_of_writing_a_figure(text: str, found: list[tuple[str, str, float, str]]) -> None:
    """Currencies, scale words, ranges, losses in brackets and wrapped lines."""
    assert _found(text) == found


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("Net sales  $ 9,189   $ 7,977", id="columns of a plain table"),
        pytest.param("Net sales | $9,189 | $7,977", id="columns with bars"),
        pytest.param("Net sales: June 2024 $61,564; July 2023 $59,000\n", id="a row as a feed writes it"),
        pytest.param("It paid $40 for 12 chairs in room 4.02.", id="a sum that measures nothing"),
        pytest.param("About 30% of them agreed.", id="a share of nothing"),
        pytest.param("Revenue grew in 2024 and 1.5.", id="numbers without a unit"),
    ],
)
def test_what_is_no_key_figure_is_left_out(text: str) -> None:
    """A number whose scale stands elsewhere, or that measures nothing, is not quoted."""
    assert _found(text) == []


def test_the_metric_is_of_the_same_sentence() -> None:
    """Words on the other side of a full stop say nothing about a number."""
    assert _found("We have no revenue. The site cost $3 million.") == [("", "usd", 3e6, "$3 million")]


PIECES = st.sampled_from(
    ["$", "1", ",111", ".5", " million", "US$", "-", " to ", "%", " percent", " per share", "(", ")", "\n", " ", "EPS ",
     "net sales ", "expects ", ". ", "0" * 20, "é", "漢", "EUR ", "|"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=60).map("".join), st.integers(1, 9))
def test_every_quote_is_in_the_text(text: str, part: int) -> None:
    """Whatever the text, a span's quote is what stands there, spans are in order, and values are finite."""
    figures = key_figures(text, part)
    for figure in figures:
        span = figure.span
        assert (span.part, text[span.start : span.end]) == (part, span.quote)
        assert span.quote
        assert figure.value == figure.value
        assert abs(figure.value) < 1e30
    starts = [figure.span.start for figure in figures]
    assert starts == sorted(set(starts))


@pytest.mark.parametrize(
    "text",
    ["$1 " * 133_000, "1,111" * 80_000, "1% " * 133_000, "$" * 400_000, "$5" + " " * 400_000, "$1-" * 133_000,
     "net sales " * 40_000, "Net sales rose 5 percent to $5 million. " * 10_000, "$1 to " * 66_000],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_a_hostile_text_costs_a_bounded_number_of_looks(text: str) -> None:
    """400,000 characters of anything are looked at in short pieces, a bounded number of times, for a bounded answer."""
    pauses: list[None] = []
    figures = key_figures(text, 1, lambda: pauses.append(None))
    assert len(figures) <= MOST_FIGURES
    assert len(text) / SLAB_CHARS / 2 < len(pauses) + MOST_SEEN / 8
    assert len(pauses) <= 3 * len(text) / SLAB_CHARS + MOST_SEEN / 8


def test_clear_figures_come_before_unclear_ones() -> None:
    """Where there are more than a part may have, those that measure something are kept."""
    text = "A fund of $2 billion. " * MOST_FIGURES + "Revenue was $3 million."
    figures = key_figures(text, 1)
    assert len(figures) == MOST_FIGURES
    assert figures[-1].metric == "revenue"
