"""Calibrated probabilities on the signals topic, from a file in a worker's directory to the strategy engine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from schemas.enums import Direction
from schemas.settings import KafkaSettings, RedisSettings
from tests.scheduler.running import news, node, publish, results
from workers.calibration import Calibration, HeadCalibration

pytestmark = pytest.mark.integration


async def test_signals_carry_calibrated_probabilities_and_name_their_calibration(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings, tmp_path: Path
) -> None:
    """What a strategy reads went through the worker's calibration; the model's own numbers stand beside it."""
    async with node(kafka_settings, redis_settings) as one:
        one.worker()
        await publish(kafka_settings, [news("plain")])
        await one.until_ended(1)
        await one.end()
    (plain,) = (await results(kafka_settings)).signals
    assert plain.calibration_id == ""
    assert plain.probabilities == plain.raw["direction"]

    labels = [direction.value for direction in Direction]
    head = HeadCalibration(labels=labels, log_priors=[-0.1, -2.0, -1.0], temperature=2.0)
    made = Calibration(
        model_revision=plain.model_revision, prompt_version=plain.prompt_version, heads={"direction": head}
    )
    (tmp_path / f"{made.id}.json").write_bytes(msgspec.json.encode(made))
    async with node(kafka_settings, redis_settings) as one:
        one.worker(calibrations=tmp_path)
        await publish(kafka_settings, [news("calibrated")])
        await one.until_ended(1)
        await one.end()
    signal = next(s for s in (await results(kafka_settings)).signals if s.event_id == "wire:calibrated:1")
    assert signal.calibration_id == made.id
    assert signal.probabilities == pytest.approx(head.apply("direction", signal.raw["direction"]))
    assert signal.probabilities != pytest.approx(signal.raw["direction"])
    assert sum(signal.probabilities.values()) == pytest.approx(1.0)
    assert signal.score == pytest.approx(
        signal.probabilities[Direction.BULLISH] - signal.probabilities[Direction.BEARISH]
    )
    assert set(signal.heads) == {"event_type", "relevance"}
