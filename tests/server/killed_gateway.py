"""A gateway that submits to itself until it is killed, and writes down each job once it was told that it is accepted.

Arguments: the folder, and which life of the gateway this is. A trigger of the database counts the ends of jobs.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from gateway_tools import accepted, serving  # noqa: E402
from inprocess_engine import InProcessEngine, request  # noqa: E402

ENDS = (
    "CREATE TABLE IF NOT EXISTS ends (job TEXT)",
    "CREATE TRIGGER IF NOT EXISTS ends_of_new AFTER INSERT ON jobs WHEN NEW.result IS NOT NULL "
    "BEGIN INSERT INTO ends VALUES (NEW.id); END",
    "CREATE TRIGGER IF NOT EXISTS ends_of_old AFTER UPDATE OF status ON jobs "
    "BEGIN INSERT INTO ends VALUES (NEW.id); END",
)


async def main(folder: Path, life: int) -> None:
    with (folder / "accepted.txt").open("a", buffering=1) as told:
        async with serving(folder, InProcessEngine(slots=2, seconds=0.01)) as gateway:
            with gateway._journal._writer.transaction() as database:
                for statement in ENDS:
                    database.execute(statement)

            async def submit(lane: int) -> None:
                for number in range(1000):
                    # Some are new, some are shared with the other lane or known from an earlier life.
                    text = f"life {life} {number}" if number % 3 else f"{['known', 'WRONG', 'DIE1'][lane % 3]} {number}"
                    for job in await accepted(gateway, request(text, run_id=f"run-{lane}")):
                        told.write(job.id + "\n")
                    await asyncio.sleep(0.02)

            await asyncio.gather(*(submit(lane) for lane in range(3)))


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
