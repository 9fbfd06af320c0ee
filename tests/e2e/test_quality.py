"""``tapewire eval`` on real vLLM with the model in a wheel: the shipped calibration fits the shipped prompt."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.ops.command import start

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (pip install '.[cpu]')"),
]

SECONDS = 400.0
"""For the first start on a busy machine, the conversion of the model included."""
PLAIN = {
    "positive": [
        "Arvenholt Steel raises profit forecast on strong demand",
        "Mossgate Bank posts record quarterly earnings, lifts dividend",
        "Tarn Robotics wins $900 million order, shares surge",
        "Elbridge Foods beats estimates and boosts outlook",
    ],
    "negative": [
        "Quillon Pharma plunges after trial of its main drug fails",
        "Dunmore Retail warns of deeper loss, suspends dividend",
        "Hesper Air fined $200 million, shares tumble",
        "Northmoor Energy defaults on bonds as debt mounts",
    ],
}
"""Headlines that leave no doubt: an answer that misses several of them comes from a broken prompt or calibration."""


def test_the_default_is_calibrated(tmp_path: Path) -> None:
    """Plain `tapewire eval` finds the calibration of the shipped prompt, takes three steps, and reads plain news right.

    It fails when the prompt of `headline` changes and its calibration is not made again (docs/quality.md says how).
    """
    file = tmp_path / "plain.jsonl"
    lines = [{"text": text, "label": label} for label, texts in PLAIN.items() for text in texts]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    process = start("eval", "--file", str(file), "--model", "smollm2", "--engine", "vllm", "--json")
    try:
        stdout, stderr = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, stderr
    found = json.loads(stdout)
    assert found["calibration"] == "stored"
    assert found["calibration_id"].startswith("cal-")
    assert found["n"] == len(lines)
    assert found["decode_steps_per_item"] <= 3
    assert found["accuracy"] >= 0.75
    assert found["raw"] != {name: found[name] for name in found["raw"]}
