"""A desk in a process of its own, which a test can stop: ``python -m tests.scheduler.desk_process LINK_JSON COUNT``.

It writes one line of JSON when all of its work has ended.
"""

from __future__ import annotations

import asyncio
import json
import sys

from schemas.settings import LinkSettings
from tests.scheduler.desk import desk
from tests.scheduler.waiting import until


def tell(line: str) -> None:
    """Write one line to the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(link: LinkSettings, count: int) -> None:
    """Give out the work and wait for its end."""
    async with desk(link) as one:
        await until(lambda: len(one.registry.status()) == 2)
        tell("ready")
        for number in range(count):
            one.add(str(number))
        await until(lambda: not one.open)
        told = {"ends": sorted(set(one.ended.values())), "deaths": one.deaths, "requeued": one.requeued}
        tell(json.dumps(told | {"workers": len(one.registry.status())}))


if __name__ == "__main__":
    asyncio.run(main(LinkSettings.model_validate_json(sys.argv[1]), int(sys.argv[2])))
