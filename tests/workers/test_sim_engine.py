"""The simulated engine in real time: determinism, order, times and aborts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from schemas.frames import Failure, Result, Started
from schemas.settings import WorkerSettings
from tests.workers.conftest import BRIEF, INSTANT, PATIENCE, STUCK, make_request
from workers.calibration import Calibration, HeadCalibration, apply, save_calibration
from workers.engine import Steps
from workers.sim_engine import REVISION, SimEngine
from workers.train_sim_tokenizer import VOCABULARY, train


class Recorder:
    """A sink that keeps everything and wakes whoever waits."""

    def __init__(self) -> None:
        self.started: list[Started] = []
        self.results: list[Result] = []
        self.failures: list[Failure] = []
        self.steps: list[Steps] = []
        self.died: list[str] = []
        self._more = asyncio.Event()

    def on_started(self, started: Started) -> None:
        """Keep it."""
        self.started.append(started)

    def on_result(self, result: Result) -> None:
        """Keep it."""
        self.results.append(result)
        self._more.set()

    def on_failure(self, failure: Failure) -> None:
        """Keep it."""
        self.failures.append(failure)
        self._more.set()

    def on_steps(self, steps: Steps) -> None:
        """Keep it."""
        self.steps.append(steps)

    def on_died(self, reason: str) -> None:
        """Keep it."""
        self.died.append(reason)
        self._more.set()

    async def ended(self, count: int) -> None:
        """Wait until so many requests have ended."""
        async with asyncio.timeout(PATIENCE):
            while len(self.results) + len(self.failures) < count:
                self._more.clear()
                await self._more.wait()


Make = Callable[[WorkerSettings], SimEngine]


@pytest.fixture
def sink() -> Recorder:
    """Record what the engine says."""
    return Recorder()


@pytest.fixture
async def make_engine(sink: Recorder) -> AsyncIterator[Make]:
    """Make engines that are stopped at the end."""
    async with AsyncExitStack() as stack:

        def make(settings: WorkerSettings) -> SimEngine:
            engine = SimEngine(settings, sink, lambda _state, _detail: None)
            stack.push_async_callback(engine.stop)
            return engine

        yield make


async def test_free_steps_answer_at_once(sink: Recorder, make_engine: Make) -> None:
    """With all costs zero, every answer is there when submit returns, and the turn counts as one step."""
    engine = make_engine(INSTANT)
    await engine.start()
    engine.submit([make_request(i) for i in range(100)])
    assert [result.request_id for result in sink.results] == list(range(100))
    assert (engine.in_flight, engine.steps, len(sink.steps)) == (0, 1, 1)


async def test_answers_depend_on_the_text_alone(sink: Recorder, make_engine: Make) -> None:
    """The same ids get the same answer at any speed and in any company; other ids get others."""
    texts = [[i, i + 1, 7] for i in range(1, 30)]
    for settings in (INSTANT, WorkerSettings(engine="sim", sim_step_ms=0.1, sim_prefill_token_us=0, sim_decode_us=0)):
        engine = make_engine(settings)
        await engine.start()
        engine.submit([make_request(i, text) for i, text in enumerate(texts)])
        await sink.ended(len(texts))
        by_id = sorted(sink.results, key=lambda result: result.request_id)
        if settings is INSTANT:
            expected = [result.answer for result in by_id]
            sink.results.clear()
    assert [result.answer for result in by_id] == expected
    assert len({answer.direction for answer in expected}) == 3
    for answer in expected:
        assert abs(sum(answer.probabilities.values()) - 1) < 1e-9
        assert answer.probabilities[answer.direction] == max(answer.probabilities.values())


async def test_every_head_is_answered(sink: Recorder, make_engine: Make) -> None:
    """Each extractor's answers have distributions over all its heads, and every label comes up for some text."""
    engine = make_engine(INSTANT)
    description = await engine.start()
    for extractor in description.extractors:
        sink.results.clear()
        engine.submit([make_request(i, [i, 7, 9], extractor.name) for i in range(1, 1500)])
        seen: dict[str, set[str]] = {head: set() for head in extractor.heads}
        for result in sink.results:
            assert {head: list(spread) for head, spread in result.answer.raw.items()} == extractor.heads
            for head, spread in result.answer.raw.items():
                assert abs(sum(spread.values()) - 1) < 1e-9
                seen[head].add(max(spread, key=spread.__getitem__))
            assert result.output_tokens == len(extractor.heads)
        assert seen == {head: set(labels) for head, labels in extractor.heads.items()}


async def test_a_calibration_of_the_users_is_applied(sink: Recorder, make_engine: Make, tmp_path: Path) -> None:
    """A calibration for this model and prompt changes the probabilities and names itself; raw keeps the engine's."""
    plain = make_engine(INSTANT)
    headline = next(each for each in (await plain.start()).extractors if each.name == "headline")
    labels = headline.heads["direction"]
    calibration = Calibration(
        model_revision=REVISION,
        prompt_version=headline.prompt_version,
        heads={"direction": HeadCalibration(labels=labels, log_priors=[-0.1, -2.0, -2.0], temperature=2.0)},
    )
    other = structs.replace(calibration, prompt_version="headline-0")
    for each in (calibration, other):
        save_calibration(each, tmp_path)
    engine = make_engine(INSTANT.model_copy(update={"calibrations": tmp_path}))
    with capture_logs() as logs:
        await engine.start()
    [ignored] = [line for line in logs if line["event"] == "calibrations_ignored"]
    assert ignored["ids"] == [other.id]
    plain.submit([make_request(1)])
    engine.submit([make_request(2)])
    before, after = (result.answer for result in sink.results)
    assert (before.calibration_id, after.calibration_id) == ("", calibration.id)
    assert before.raw == after.raw
    assert after.probabilities == apply(calibration, before.raw)["direction"] != before.probabilities


async def test_a_users_extractor_is_offered(make_engine: Make, tmp_path: Path) -> None:
    """A file in the user's directory is offered to schedulers like a shipped one."""
    labels = 'bullish=" skyrocketing"\nbearish=" plummeting"\nneutral=" unmoved"'
    (tmp_path / "mine.toml").write_text(
        f'name="mine"\nintro=""\nlead=""\nask="?"\nclose=""\n[[heads]]\nname="direction"\n[heads.labels]\n{labels}'
    )
    engine = make_engine(INSTANT.model_copy(update={"extractors": tmp_path}))
    assert [each.name for each in (await engine.start()).extractors] == ["filing", "headline", "mine"]


async def test_a_filing_reports_its_first_token(sink: Recorder, make_engine: Make) -> None:
    """A long answer reports its start once, then its end, with times in order."""
    engine = make_engine(BRIEF)
    await engine.start()
    engine.submit([make_request(1, extractor="filing")])
    await sink.ended(1)
    [started], [result] = sink.started, sink.results
    assert (started.request_id, started.first_token_ns) == (1, result.first_token_ns)
    assert result.engine_started_ns < result.first_token_ns < result.completed_ns
    assert result.output_tokens > 1
    assert result.answer.event_type is not None


async def test_step_reports_add_up(sink: Recorder, make_engine: Make) -> None:
    """Step reports cover every output token and cost what the settings say."""
    engine = make_engine(BRIEF)
    await engine.start()
    engine.submit([make_request(1, extractor="filing"), make_request(2)])
    await sink.ended(2)
    await asyncio.sleep(0)
    total = sum(result.output_tokens for result in sink.results)
    # The step that completes a prefill also produces a token.
    assert sum(steps.decode_tokens for steps in sink.steps) == total - 2
    assert sum(steps.prefill_tokens for steps in sink.steps) > 0
    assert all(steps.seconds >= BRIEF.sim_step_ms / 1e3 for steps in sink.steps)


async def test_abort_frees_and_says_nothing(sink: Recorder, make_engine: Make) -> None:
    """An aborted request is neither in flight nor reported, even when its step is under way."""
    engine = make_engine(STUCK)
    await engine.start()
    engine.submit([make_request(1), make_request(2)])
    await asyncio.sleep(0)
    engine.abort([1, 2, 3])
    assert engine.in_flight == 0
    assert not sink.results
    assert not sink.failures


async def test_a_step_loop_that_breaks_is_told(
    sink: Recorder, make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect in the step loop ends the engine with a reason instead of a worker that hangs."""
    engine = make_engine(BRIEF)
    await engine.start()

    def explode(_self: object, _starts_ns: int) -> None:
        raise ValueError("no step")

    monkeypatch.setattr("workers.sim_core.SimCore.schedule", explode)
    engine.submit([make_request(1)])
    async with asyncio.timeout(PATIENCE):
        while not sink.died:
            sink._more.clear()
            await sink._more.wait()
    assert "no step" in sink.died[0]


def test_training_is_deterministic() -> None:
    """The same text gives the same tokenizer, so the committed file can be made again."""
    text = ["Acme Corp reports record profit of $1.2 billion"] * 20
    first, second = train(iter(text)), train(iter(text))
    assert first.to_str() == second.to_str()
    assert first.get_vocab_size() <= VOCABULARY
