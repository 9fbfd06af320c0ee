"""A ``tapewire`` process whose clock can be stepped and whose engine can hang or fail: what no signal can do.

``python -m tests.chaos.hooked FILE scheduler --config ...`` runs the command after replacing ``time.time_ns`` and
``time.time`` by versions that add an offset, and three methods of the simulated engine. So this is **not** the process
as shipped: one scheduler and one worker of a run are such processes, the others are the plain command. All values are
read from a mapped file that the bench writes; while it holds zeros, the replaced functions do what the originals do.
"""

from __future__ import annotations

import mmap
import random
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import ErrorKind
from schemas.frames import Failure, Request
from workers.sim_core import Costs, Step
from workers.sim_engine import SimEngine

LAYOUT = struct.Struct("=qdd")
"""Offset of the clock in nanoseconds, seconds that the next steps take on top, share of requests that fail."""


class Control:
    """The mapped file, from either side."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(LAYOUT.size))
        with path.open("r+b") as handle:
            self._map = mmap.mmap(handle.fileno(), LAYOUT.size)

    def read(self) -> tuple[int, float, float]:
        """Return (clock offset in ns, extra seconds of a step, share of failures)."""
        offset, stuck, failing = LAYOUT.unpack_from(self._map)
        return offset, stuck, failing

    def write(self, offset_ns: int = 0, stuck_seconds: float = 0.0, failing: float = 0.0) -> None:
        """Set all three."""
        LAYOUT.pack_into(self._map, 0, offset_ns, stuck_seconds, failing)


def step_clock(control: Control) -> None:
    """Add the control's offset to this process's wall clock; the monotonic clock stays."""
    real_ns = time.time_ns

    def time_ns() -> int:
        return real_ns() + control.read()[0]

    def seconds() -> float:
        return time_ns() / 1e9

    time.time_ns, time.time = time_ns, seconds


def spoil_engine(control: Control) -> None:
    """Let steps take longer, and requests fail, as the control says."""
    cost_of, submit = Costs.seconds, SimEngine.submit
    rng = random.Random(0)

    def slow_step(self: Costs, step: Step) -> float:
        return cost_of(self, step) + control.read()[1]

    def failing_submit(self: SimEngine, requests: Sequence[Request]) -> None:
        share = control.read()[2]
        taken = [request for request in requests if not share or rng.random() >= share]
        kept = {request.request_id for request in taken}
        for request in requests:
            if request.request_id not in kept:
                kind, message = ErrorKind.ENGINE_ERROR.value, "made to fail by the chaos bench"
                self._sink.on_failure(
                    Failure(request_id=request.request_id, kind=kind, message=message, retryable=True)
                )
        submit(self, taken)

    Costs.seconds = slow_step  # type: ignore[method-assign]  # that is the hook
    SimEngine.submit = failing_submit  # type: ignore[method-assign]  # that is the hook


def main() -> None:
    """Install the hooks and run the command."""
    control = Control(Path(sys.argv[1]))
    if sys.argv[2] == "scheduler":
        step_clock(control)
    else:
        spoil_engine(control)
    sys.argv[1:] = sys.argv[2:]
    from ops.cli import main as tapewire

    tapewire()


if __name__ == "__main__":
    main()
