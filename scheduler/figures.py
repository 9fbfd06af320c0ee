"""Key figures of a filing, found by rules and quoted with their exact place: the model never writes a number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from scheduler.slabs import slabs
from schemas.records import Figure, Span

MOST_FIGURES = 64
"""Figures of one part. Those whose metric is clear come first."""
MOST_SEEN = 2_000
"""Numbers of one part that are looked at, 0.1 ms each; 400,000 hostile characters hold 130,000."""
BEFORE_CHARS = 160
"""How far before a number the words stand that say what it measures; never over the end of a sentence."""
AFTER_CHARS = 60
MOST_PER_SHARE = 10_000
"""An amount from here on is none per share, whatever stands around it."""
BREATH_NUMBERS = 8
LARGE = 1_000_000
"""A sum that is not said to measure anything is worth quoting from here on."""

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,5}(?![0-9])|[0-9]{1,15})(?:\.[0-9]{1,6})?|\.[0-9]{1,6}"
_SCALE = (
    r"(?:[\s-]{0,6}(?:[Tt]housand|[Mm]illion|[Bb]illion|[Tt]rillion)s?(?![A-Za-z])|[ ]?(?:mm|mn|bn|tn)\b|[KMBkmb]\b)"
)
_MONEY = re.compile(
    rf"""
    (?<![A-Za-z0-9])
    (?P<currency> US\$ | CA?\$ | AU?\$ | HK\$ | \$ | € | £ | ¥
      | (?:USD|EUR|GBP|JPY|CHF|CAD|AUD|CNY|RMB|HKD)\b ) [ \t\u00a0]{{0,2}}
    (?: \( [ ]? (?P<loss>{_DIGITS}) [ ]? \) | (?P<number>{_DIGITS}) )
    (?P<scale>{_SCALE})?
    (?: [ ]{{0,2}} (?:-|\u2013|\u2014|to) [ ]{{0,2}} (?P<high>(?:{_DIGITS})(?![0-9,.%])(?P<high_scale>{_SCALE})) )?
    """,
    re.VERBOSE,
)
_PERCENT = re.compile(
    r"(?<![\w.,])(?:(?P<low>-?[0-9]{1,3}(?:\.[0-9]{1,4})?)[ ]?(?:-|\u2013|\u2014|to)[ ]?)?"
    r"(?P<number>-?[0-9]{1,3}(?:,[0-9]{3})?(?:\.[0-9]{1,4})?)(?:[ \u00a0]?%|\s{1,4}(?:percent|per[ ]cent)\b)"
)
_CURRENCIES = {
    "US$": "usd", "$": "usd", "C$": "cad", "CA$": "cad", "A$": "aud", "AU$": "aud", "HK$": "hkd", "€": "eur",
    "£": "gbp", "¥": "jpy", "RMB": "cny",
}  # fmt: skip
_POWERS = {"t": 12, "tn": 12, "b": 9, "bn": 9, "m": 6, "mm": 6, "mn": 6, "k": 3}
_PER_SHARE = re.compile(
    r"[\s,]{0,4}(?:(?:in\s+cash|cash|net)\s{1,3})?(?:per|a|for\s+each|an?)\s{1,4}"
    r"(?:(?:fully|diluted|basic|common|ordinary|outstanding|limited|partnership)\s{1,4}){0,3}(?:share|ADS|ADR|unit)\b",
    re.IGNORECASE,
)
_RANGE = re.compile(r"\s{0,4}(?:to|and|through|-|\u2013|\u2014)\s{0,4}")
_ADJECTIVES = re.compile(
    r"\s{0,4}(?:(?:in|of|for|as|a|an|the|non-cash|cash|pre-?tax|after-tax|goodwill|asset|quarterly|annual|total|aggregate|special"
    r"|regular|net)\s{1,4}){0,4}",
    re.IGNORECASE,
)
_PER = r"per\s+(?:(?:common|ordinary|diluted|basic)\s+)?share"
_EARNED = r"(?:(?:net\s+)?(?:earnings|income|loss)|EPS)"
_OPERATED = r"cash\s+(?:provided|generated|flow)\s+(?:by|from)\s+operat\w{1,10}"
_METRICS: tuple[tuple[str, str], ...] = (
    ("eps_diluted", rf"(?:diluted\s+{_EARNED}(?:\s+{_PER})?|{_EARNED}\s+per\s+(?:common\s+)?diluted\s+share)"),
    ("eps_basic", rf"(?:basic\s+{_EARNED}(?:\s+{_PER})?|{_EARNED}\s+per\s+basic\s+share)"),
    ("eps", rf"(?:{_EARNED}|profit)\s+{_PER}|EPS"),
    ("net_loss", r"net\s+loss(?:es)?"),
    ("net_income", r"(?:net\s+(?:income|earnings|profit)|earnings)"),
    ("operating_loss", r"operating\s+loss"),
    ("operating_margin", r"operating\s+margin"),
    ("operating_income", r"(?:operating\s+(?:income|profit)|income\s+from\s+operations)"),
    ("gross_margin", r"gross\s+(?:profit\s+)?margin"),
    ("ebitda", r"EBITDA"),
    ("free_cash_flow", r"free\s+cash\s+flow"),
    ("operating_cash_flow", rf"(?:operating\s+cash\s+flow|{_OPERATED})"),
    ("revenue", r"(?:revenues?|net\s+sales|sales|turnover)"),
    ("dividend", r"dividends?"),
    ("buyback", r"(?:buy-?backs?|(?:share|stock)\s+repurchases?|repurchase\s+(?:program|of))"),
    ("impairment", r"(?:impairments?|write-?(?:downs?|offs?))"),
    ("restructuring", r"restructuring"),
    ("purchase_price", r"(?:purchase\s+price|merger\s+consideration|acquisition\s+price)"),
    ("debt", r"(?:principal\s+amount|credit\s+facility|senior\s+notes|term\s+loan|indebtedness)"),
    ("settlement", r"(?:settlement|damages|civil\s+penalt(?:y|ies))"),
    ("cash", r"cash\s+and\s+cash\s+equivalents"),
)  # fmt: skip
_METRIC = re.compile("|".join(rf"(?P<{name}>\b{pattern}\b)" for name, pattern in _METRICS), re.IGNORECASE)
_PER_SHARE_METRICS = frozenset({"eps", "eps_basic", "eps_diluted"})
_OUTLOOK = re.compile(
    r"\b(?:guidance|outlook|forecasts?|expect(?:s|ed)?|anticipat\w{1,4}|project(?:s|ed)|targets?)\b", re.IGNORECASE
)
_SENTENCE = re.compile(r"[.!?;]\s|\n\s*\n")


@dataclass(slots=True)
class _Number:
    """A number in the text: its place, what it is worth and in which unit."""

    start: int
    end: int
    value: float
    unit: str
    power: int
    scaled: bool


def key_figures(text: str, part: int, pause: Callable[[], None] | None = None) -> list[Figure]:
    """Return the key figures of a part, in the order of the text; time is linear in its length.

    Money with its scale word applied, percentages, and amounts per share. A number in a table without a scale word is
    left out, since its scale stands somewhere else. The metric is that of the nearest words in the same sentence,
    with ``guidance_`` before it where the sentence speaks of what is expected.

    Args:
        text: any text.
        part: number of the part, for the spans.
        pause: called between pieces of work of about a millisecond.
    """
    clear: list[Figure] = []
    unclear: list[Figure] = []
    numbers = _inherited(text, list(_numbers(text, pause)))
    for count, number in enumerate(numbers):
        if pause is not None and count % BREATH_NUMBERS == 0:
            pause()
        metric, outlook = _metric(text, number)
        if _is_per_share(text, number, metric):
            number.unit += "_per_share"
            metric = "eps" if metric == "net_income" else metric
        elif metric in _PER_SHARE_METRICS and number.unit != "percent":
            metric = ""
        if not number.unit.endswith("_per_share") and not number.scaled and _in_table(text, number):
            continue
        if outlook:
            metric = f"guidance_{metric}" if metric else "guidance"
        worth = bool(metric) or (number.unit != "percent" and abs(number.value) >= LARGE)
        if worth:
            (clear if metric else unclear).append(_figure(text, part, metric, number))
        if len(clear) >= MOST_FIGURES:
            break
    chosen = [*clear, *unclear[: MOST_FIGURES - len(clear)]]
    return sorted(chosen, key=lambda figure: figure.span.start)


def _figure(text: str, part: int, metric: str, number: _Number) -> Figure:
    span = Span(part=part, start=number.start, end=number.end, quote=text[number.start : number.end])
    return Figure(metric=metric, unit=number.unit, value=number.value, span=span)


def _numbers(text: str, pause: Callable[[], None] | None) -> Iterator[_Number]:
    """Yield the numbers of a text, slab by slab and in order within each."""
    seen = 0
    for begin, end in slabs(text):
        found = [n for m in _MONEY.finditer(text, begin, end) for n in _money(m)]
        found += [n for m in _PERCENT.finditer(text, begin, end) for n in _percent(m)]
        found.sort(key=lambda number: number.start)
        if pause is not None:
            pause()
        for number in found:
            seen += 1
            if seen > MOST_SEEN:
                return
            yield number


def _money(match: re.Match[str]) -> Iterator[_Number]:
    currency = match["currency"]
    unit = _CURRENCIES.get(currency, currency.lower())
    power = _power(match["scale"])
    if match["high"]:
        high_power = _power(match["high_scale"])
        low = _value(match["number"] or match["loss"], power or high_power)
        high = _value(match["high"].removesuffix(match["high_scale"]), high_power)
        yield _Number(match.start(), _low_end(match), low, unit, power or high_power, True)
        yield _Number(match.start("high"), match.end("high"), high, unit, high_power, True)
        return
    value = -_value(match["loss"], power) if match["loss"] else _value(match["number"], power)
    yield _Number(match.start(), match.end(), value, unit, power, bool(match["scale"]))


def _low_end(match: re.Match[str]) -> int:
    if match["scale"]:
        return match.end("scale")
    return match.end("number") if match["number"] else match.end("loss") + 1


def _percent(match: re.Match[str]) -> Iterator[_Number]:
    if match["low"]:
        yield _Number(match.start("low"), match.end("low"), float(match["low"]), "percent", 0, False)
    value = float(match["number"].replace(",", ""))
    yield _Number(match.start("number"), match.end(), value, "percent", 0, False)


def _power(scale: str | None) -> int:
    if not scale:
        return 0
    word = scale.strip(" \t\r\n\u00a0-").lower()
    for name, power in (("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12)):
        if word.startswith(name):
            return power
    return _POWERS[word]


def _value(digits: str, power: int) -> float:
    # Through the decimal text: 412.6 million is 412600000 and not 412600000.00000006.
    return float(f"{digits.replace(',', '')}e{power}")


def _inherited(text: str, numbers: list[_Number]) -> list[_Number]:
    """Let the first number of a range have the scale of the second: ``$75 to $90 million``."""
    for low, high in pairwise(numbers):
        same = low.unit == high.unit and high.scaled and not low.scaled and low.unit != "percent"
        if same and high.start - low.end <= 16 and _RANGE.fullmatch(text, low.end, high.start):
            value = low.value * 10**high.power
            if abs(value) <= abs(high.value):
                low.value, low.power, low.scaled = value, high.power, True
    return numbers


def _metric(text: str, number: _Number) -> tuple[str, bool]:
    """Return what a number measures, ``""`` where the sentence does not say, and whether that is only expected."""
    first = max(0, number.start - BEFORE_CHARS)
    for match in _SENTENCE.finditer(text, first, number.start):
        first = match.end()
    last = min(len(text), number.end + AFTER_CHARS)
    stop = _SENTENCE.search(text, number.end, last)
    last = stop.start() if stop else last
    outlook = _OUTLOOK.search(text, first, number.start) is not None
    after = _METRIC.search(text, number.end, last)
    if after and _ADJECTIVES.fullmatch(text, number.end, after.start()):
        return after.lastgroup or "", outlook
    before = ""
    for match in _METRIC.finditer(text, first, number.start):
        before = match.lastgroup or ""
    return before or (after.lastgroup or "" if after else ""), outlook


def _is_per_share(text: str, number: _Number, metric: str) -> bool:
    if number.scaled or number.unit == "percent" or abs(number.value) >= MOST_PER_SHARE:
        return False
    if _PER_SHARE.match(text, number.end, number.end + AFTER_CHARS):
        return True
    # The first of "$1.10 to $1.20 per share", and an amount that earnings per share are said to be.
    between = _MONEY.search(text, number.end, number.end + AFTER_CHARS)
    if between and _RANGE.fullmatch(text, number.end, between.start()):
        return bool(_PER_SHARE.match(text, between.end(), between.end() + AFTER_CHARS)) or metric in _PER_SHARE_METRICS
    return metric in _PER_SHARE_METRICS


def _in_table(text: str, number: _Number) -> bool:
    """Whether a number stands in a column rather than in a sentence: parted by bars, tabs or blanks.

    Feeds that read HTML write a row as ``label: column $1,234; column $1,100``.
    """
    before = text[max(0, number.start - 3) : number.start]
    after = text[number.end : number.end + 6]
    column_before = before.endswith(("  ", "\t", "| ", "|", "\t "))
    column_after = after[:1] in ("\t", "|") or after.startswith(("  ", " |", " $"))
    row = number.unit != "percent" and abs(number.value) < LARGE and after[:1] in (";", "\n", "")
    return column_before or column_after or row
