"""Outlives the bench to clear up after it: ``python -m tests.chaos.guardian PID DIRECTORY COMMAND...``.

Our own children die with us by the kernel's parent-death signal. Kafka's launcher ends after the start and its nodes
belong to init, so someone has to end them when the bench is killed with ``kill -9``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time

from workers.orphan_guard import wait_for_death

ATTEMPTS, PAUSE_SECONDS = 5, 0.2


def main(arguments: list[str]) -> None:
    """Wait for the death of a process, run a command, and remove a directory."""
    pid, directory, *command = arguments
    wait_for_death(int(pid))
    subprocess.run(command, check=False, timeout=60, capture_output=True)
    # The last of the others may still be writing as it dies.
    for _ in range(ATTEMPTS):
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:])
