"""Facts about real files: every one of a larger corpus, where it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from producers.edgar.filing import parse_filing
from producers.edgar.listing import parse_current, parse_tickers
from producers.formats import Listed, parse
from schemas.codec import decode_filing, decode_news, encode_json
from schemas.records import FilingEvent, NewsEvent
from tests.producers.edgar.corpus import CONTEXT, CORPUS, needs_corpus

pytestmark = needs_corpus

FILES = sorted(path for path in CORPUS.rglob("*") if path.is_file() and path.name != "MANIFEST.tsv")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORPUS)))
def test_every_file_gives_events_or_a_typed_rejection(path: Path) -> None:
    """No file crashes; its events are valid records, or the rejection says why there are none."""
    parsed = parse(path.read_bytes(), CONTEXT)
    assert bool(parsed.items) != (parsed.rejected is not None)
    if parsed.rejected is not None:
        assert parsed.rejected.kind.value
        assert parsed.rejected.reason
    for item in parsed.items:
        if isinstance(item, FilingEvent):
            assert decode_filing(encode_json(item)) == item
        elif isinstance(item, NewsEvent):
            assert decode_news(encode_json(item)) == item


FACTS: dict[str, dict[str, Any]] = {
    "8-K_0001213900-25-032135.txt": {"form": "8-K", "items": ["2.02", "4.02", "7.01", "9.01"], "symbols": ["ABVC"]},
    "8-K_0000796343-23-000044_adobe.txt": {"form": "8-K", "items": ["2.02", "9.01"], "symbols": ["ADBE"]},
    "8-K_0000950137-05-004969_exelon.txt": {"form": "8-K", "items": ["5.02"], "symbols": []},
    "8-K_0001011438-98-000429.txt": {"form": "8-K", "items": ["7"], "symbols": []},
    "10-K_0000320193-94-000016_apple.txt": {"form": "10-K", "items": [], "symbols": []},
}


@pytest.mark.parametrize("name", FACTS)
def test_facts_of_submissions(name: str) -> None:
    """Form, items and symbols are those that the filing's own pages show."""
    filing = parse_filing((CORPUS / "filings" / name).read_bytes(), CONTEXT)
    assert {"form": filing.header.form, "items": filing.items, "symbols": filing.symbols} == FACTS[name]


def test_same_filing_from_both_containers() -> None:
    """The whole ``.nc`` gives the events of the whole ``.txt``, but for the acceptance time that it does not have."""
    name = "SC-TO-T-A_SC-13D-A_0001104659-25-002604"
    txt, nc = (
        parse_filing((CORPUS / "filings" / f"{name}.{kind}").read_bytes(), CONTEXT).events(CONTEXT)
        for kind in ("txt", "nc")
    )
    assert [msgspec.structs.replace(event, accepted_at_ns=0) for event in txt] == nc


def test_quarterly_report_is_cut_at_its_items() -> None:
    """A real 10-Q gives its eleven items in order, none of them from the table of contents."""
    parsed = parse((CORPUS / "filings" / "10-Q_apple.htm").read_bytes(), CONTEXT)
    sections = dict.fromkeys(item.section for item in parsed.items if isinstance(item, FilingEvent))
    numbers = [name.split(" ")[3] for name in sections if ", Item " in name]
    assert numbers == ["1", "2", "3", "4", "1", "1A", "2", "3", "4", "5", "6"]
    text = "\n".join(item.text for item in parsed.items if isinstance(item, FilingEvent))
    assert "Products: Three Months Ended June 29, 2024 $61,564; Three Months Ended July 1, 2023 $60,584" in text
    assert "us-gaap:" not in text


def test_two_sweeps_name_each_accession_once() -> None:
    """Two sweeps of the real feed, 70 s apart, overlap; each accession is new once."""
    folder = CORPUS / "feeds" / "edgar_getcurrent"
    seen: list[str] = []
    overlapping = 0
    for name in ("20251212T1802_start0000", "20251212T1802_start0200", "20251212T1803_start0000"):
        page = parse_current((folder / f"{name}.atom.xml").read_bytes())
        assert page.entries == 100
        new = [listed.accession for listed in page.listed if listed.accession not in seen]
        overlapping += len(page.listed) - len(new)
        seen.extend(new)
    assert len(seen) == len(set(seen))
    assert overlapping > 0


def test_items_of_the_current_feed() -> None:
    """8-K entries of the real feed carry their item codes; other forms' items are not taken for such."""
    page = parse((CORPUS / "feeds/edgar_getcurrent/20260112T1128_start0600.atom.xml").read_bytes(), CONTEXT)
    listed = [item for item in page.items if isinstance(item, Listed)]
    assert all(item.items for item in listed if item.form.startswith("8-K"))
    assert not any(item.items for item in listed if not item.form.startswith("8-K"))


def test_ticker_map() -> None:
    """The real map has several tickers for one company."""
    tickers = parse_tickers((CORPUS / "feeds/company_tickers.json").read_bytes())
    assert tickers["0000320193"] == ["AAPL"]
    assert any(len(several) > 1 for several in tickers.values())
