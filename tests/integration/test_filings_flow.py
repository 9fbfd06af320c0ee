"""Long filings through the whole scheduler with a simulated engine: one signal each, headlines first, nothing lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from schemas.enums import Stage
from schemas.frames import Extractor
from schemas.records import Signal
from schemas.settings import ClassSettings, FilingSettings, KafkaSettings, LimitSettings, RedisSettings
from tests.conftest import Broker
from tests.scheduler.records import committed, ends, read
from tests.scheduler.running import NEVER_MS, PATIENT, Results, filing, kill, news, node, publish, results
from workers.prompts import Prompt

pytestmark = pytest.mark.integration

CHUNK_TOKENS = 512
SENTENCE = "Net sales of division {n} rose 4 percent to $5 million in the quarter, and its outlook is unchanged. "
CLASSES = (
    ClassSettings(name="flash", slo_ms=60_000, toxic_ms=120_000, extractor="headline"),
    ClassSettings(name="bulk", slo_ms=60_000, extractor="filing"),
)


@pytest.fixture(autouse=True)
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the workers of this process announce that filings are split."""
    plain = vars(Prompt)["extractor"].fget

    def split(prompt: Prompt) -> Extractor:
        found: Extractor = plain(prompt)
        if found.name != "filing":
            return found
        values = {name: getattr(found, name) for name in found.__struct_fields__}
        return Extractor(**(values | {"chunk_tokens": CHUNK_TOKENS, "overlap_tokens": 32}))

    monkeypatch.setattr(Prompt, "extractor", property(split))


def _text(chars: int) -> str:
    text = "".join(SENTENCE.format(n=n) + ("\n\n" if n % 9 == 8 else "") for n in range(chars // len(SENTENCE) + 1))
    return text[:chars]


def _parts(accession: str, count: int, chars: int = 4_000, *, of: int = 0) -> list[Any]:
    return [
        filing(0, _text(chars), accession=accession, event_id=f"{accession}:d:{n}", part=n, parts=of or count)
        for n in range(1, count + 1)
    ]


def _filings(found: Results) -> list[Signal]:
    return [signal for signal in found.signals if signal.filing is not None]


async def test_a_filing_of_400_000_tokens_delays_no_headline(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """Four parts at the limit of characters give one signal; headlines that arrive meanwhile are all answered first."""
    parts = _parts("0001-big", 4, LimitSettings().text_chars)
    async with node(kafka_settings, redis_settings, max_queued_mb=64) as one:
        one.worker(sim_step_ms=1.0, max_num_seqs=64)
        await publish(kafka_settings, parts)
        sent = 0
        while not one.scheduler._stats.classes[2].signals:
            await publish(kafka_settings, [news(f"h{sent + n}") for n in range(5)])
            sent += 5
            before = one.ended
            await one.until(lambda before=before: one.ended > before)
        await one.until_ended(sent + 1)
        assert set(one.scheduler._room._bytes.values()) == {0}
        assert set(one.scheduler._room._events.values()) == {0}
        await one.end()
    found = await results(kafka_settings)
    (signal,) = _filings(found)
    assert signal.filing is not None
    assert signal.filing.coverage == 1.0
    assert signal.filing.chunks > 4 * LimitSettings().text_chars / 4 / CHUNK_TOKENS / 2
    assert len(signal.filing.sources) == 4
    assert signal.filing.figures
    headlines = [s for s in found.signals if s.filing is None]
    assert sent > 5
    assert len(headlines) == sent
    assert not any(s.late for s in headlines)
    first, last = signal.stamps[Stage.DISPATCHED], signal.stamps[Stage.COMPLETED]
    during = [s for s in headlines if first < s.stamps[Stage.DISPATCHED] < last]
    assert during  # the filing was in the engine while these were answered
    assert set(found.outcomes.values()) == {1}


@pytest.mark.parametrize("delivery", ["at_least_once", "transactional"])
async def test_filings_in_parts_become_one_signal_each_and_commit_all_their_offsets(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings, delivery: str
) -> None:
    """Six filings of one to six parts, mixed: six signals, every offset ended once and committed."""
    filings = [_parts(f"0001-{n}", n) for n in range(1, 7)]
    mixed = [parts[i] for i in range(6) for parts in filings if i < len(parts)]
    async with node(kafka_settings, redis_settings, delivery=delivery) as one:
        one.worker()
        await publish(kafka_settings, mixed)
        await one.until_ended(6)
        await one.end()
    found = await results(kafka_settings)
    signals = {s.event_id: s for s in found.signals}
    assert set(signals) == {"0001-1:d:1", *(f"0001-{n}" for n in range(2, 7))}
    assert set(found.outcomes.values()) == {1}
    assert len(found.outcomes) == len(mixed)
    newest = {p: end for p, end in (await ends(kafka_settings, kafka_settings.topics.filings)).items() if end}
    assert await committed(kafka_settings, kafka_settings.topics.filings) == newest


async def test_a_part_that_never_comes_ends_the_wait_and_a_straggler_its_own(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """The signal says what is missing; the part that comes later has an outcome too."""
    parts = _parts("0001-x", 3)
    settings = FilingSettings(wait_seconds=0.5, partial_ms=0)
    async with node(kafka_settings, redis_settings, filings=settings) as one:
        one.worker()
        await publish(kafka_settings, [parts[0], parts[2]])
        await one.until_ended(1)
        await publish(kafka_settings, [parts[1]])
        await one.until_ended(2)
        await one.end()
    found = await results(kafka_settings)
    missing = sorted(s.filing.missing_parts for s in _filings(found) if s.filing)
    assert missing == [[1, 3], [2]]
    assert len({s.signal_id for s in found.signals}) == 2
    assert set(found.outcomes.values()) == {1}


async def test_a_deadline_that_nears_gives_a_partial_signal_first(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """A filing that the engine is slow with: a partial signal before the deadline, the whole one when it is done."""
    classes = (*PATIENT[:2], ClassSettings(name="bulk", slo_ms=30_000, extractor="filing"))
    settings = FilingSettings(partial_ms=29_900)
    async with node(kafka_settings, redis_settings, classes=classes, filings=settings) as one:
        one.worker(sim_step_ms=40.0, max_num_seqs=1)
        await publish(kafka_settings, _parts("0001-slow", 1, 8_000))
        await one.until_ended(1)
        await one.end()
    found = await results(kafka_settings)
    partial, whole = sorted(_filings(found), key=lambda s: not (s.filing and s.filing.partial))
    assert partial.filing is not None
    assert whole.filing is not None
    assert (partial.filing.partial, whole.filing.partial) == (True, False)
    assert 0 < partial.filing.coverage < whole.filing.coverage == 1.0
    assert partial.signal_id != whole.signal_id
    assert partial.stamps[Stage.EMITTED] < whole.stamps[Stage.EMITTED]


async def test_a_killed_scheduler_reads_all_parts_again_and_says_the_same(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """Ended without a drain in the middle of a filing: nothing is committed, the next one gives the one signal."""
    parts = _parts("0001-kill", 3)
    async with node(kafka_settings, redis_settings, drain_seconds=0) as one:
        process = await one.worker_process(sim_step_ms=NEVER_MS)
        await publish(kafka_settings, parts)
        await one.until(lambda: one.in_flight > 0 and one.scheduler._outcomes.filings.alive == 1)
        kill(process)
        await one.end()
    assert not any((await committed(kafka_settings, kafka_settings.topics.filings)).values())
    async with node(kafka_settings, redis_settings) as one:
        one.worker()
        await one.until_ended(1)
        await one.end()
    found = await results(kafka_settings)
    (signal,) = found.signals
    assert signal.event_id == "0001-kill"
    assert set(found.outcomes.values()) == {1}


async def test_waiting_filings_that_fill_the_room_make_way_for_the_next(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """Filings whose last part never comes fill the room for a moment only: all that came later is read too."""
    incomplete = [part for n in range(30) for part in _parts(f"0001-w{n}", 1, 20_000, of=2)]
    settings = FilingSettings(wait_seconds=3_600, partial_ms=0)
    async with node(kafka_settings, redis_settings, filings=settings, max_queued_mb=0.2) as one:
        one.worker()
        await publish(kafka_settings, [*incomplete, *_parts("0001-last", 1)])
        await one.until(lambda: one.ended >= 20)
        await one.end()
    found = await results(kafka_settings)
    assert max(Counter(s.signal_id for s in found.signals).values()) == 1
    assert "0001-last:d:1" in {s.event_id for s in found.signals}
    assert (await read(kafka_settings, kafka_settings.topics.dead_letters)) == []


async def test_filings_that_wait_at_a_rebalance_are_read_whole_by_the_new_owner(
    kafka: Broker, kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """Half of sixteen filings is here when another scheduler joins: every one still becomes one whole signal."""
    if kafka.embedded:
        pytest.skip("groups of two never settle on the embedded broker; needs a real Kafka")
    topic, filings = kafka_settings.topics.filings, [_parts(f"0001-r{n}", 2) for n in range(16)]
    settings = FilingSettings(wait_seconds=3_600, partial_ms=0)
    async with (
        node(kafka_settings, redis_settings, id="one", filings=settings) as one,
        node(kafka_settings, redis_settings, id="two", filings=settings) as two,
    ):
        one.worker("w1")
        await publish(kafka_settings, [parts[0] for parts in filings])
        desk = one.scheduler._outcomes.filings
        await one.until(lambda: desk.open == 16 and desk.idle)
        two.worker("w2")
        for member in (one, two):
            await member.until(lambda: len(member.scheduler._ledger.partitions(topic)) == 2)  # noqa: B023
        assert desk.open < 16
        await publish(kafka_settings, [parts[1] for parts in filings])
        await one.until(lambda: one.ended + two.ended >= 16)
        await two.end()
        await one.end()
    found = await results(kafka_settings)
    whole = {s.event_id for s in _filings(found) if s.filing is not None and not s.filing.missing_parts}
    assert whole == {f"0001-r{n}" for n in range(16)}
    assert set(found.outcomes.values()) == {1}
    assert len(found.outcomes) == 32
