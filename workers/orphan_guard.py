"""Ends a vLLM process when the worker process that it belongs to is gone.

vLLM's engine runs in processes of its own. When their parent is killed hard (``kill -9``, the kernel's OOM killer),
vLLM 0.32 leaves them behind with all their memory: seen with the engine process still there, adopted by init, and a
restarted worker then finds no room on the accelerator. vLLM imports the class that ``worker_extension_cls`` names in
each process that holds a model; importing this module starts a thread that waits for the owner's death. The engine
process notices the loss of its model process and ends too.
"""

from __future__ import annotations

import os
import select
import threading

OWNER = "TAPEWIRE_ENGINE_OWNER"
"""Environment variable with the worker's process id."""


class OrphanGuard:
    """Adds nothing to vLLM's worker class; it is named so that this module is imported."""


def wait_for_death(pid: int) -> None:
    """Return when no process has this id."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll()
    finally:
        os.close(handle)


def _guard(pid: int) -> None:
    wait_for_death(pid)
    os._exit(1)


def start() -> threading.Thread | None:
    """Watch the owner from a thread of this process; does nothing in a process that has none."""
    owner = os.environ.get(OWNER, "")
    if not owner.isdigit() or int(owner) == os.getpid():
        return None
    thread = threading.Thread(target=_guard, args=(int(owner),), name="orphan-guard", daemon=True)
    thread.start()
    return thread


start()
