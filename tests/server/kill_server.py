"""A job service that submits to itself until it is killed, several times over, always in the same folder.

Arguments: the folder, and how many lives the job service has. Each life writes down a job once the service has
accepted it. A trigger of the database counts the ends of jobs. Lives are forked, so that what they import is read once.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from tests.server.service_tools import accepted, serving  # noqa: E402
from tests.support.inprocess_engine import InProcessEngine, request  # noqa: E402

ENDS = (
    "CREATE TABLE IF NOT EXISTS ends (job TEXT)",
    "CREATE TRIGGER IF NOT EXISTS ends_of_new AFTER INSERT ON jobs WHEN NEW.result IS NOT NULL "
    "BEGIN INSERT INTO ends VALUES (NEW.id); END",
    "CREATE TRIGGER IF NOT EXISTS ends_of_old AFTER UPDATE OF status ON jobs "
    "BEGIN INSERT INTO ends VALUES (NEW.id); END",
)


async def live(folder: Path, life: int) -> None:
    with (folder / "accepted.txt").open("a", buffering=1) as accepted_file:
        async with serving(folder, InProcessEngine(slots=2, seconds=0.01)) as service:
            with service._state.store._writer.transaction() as database:
                for statement in ENDS:
                    database.execute(statement)

            async def submit(run_number: int) -> None:
                for number in range(1000):
                    # Some are new, some are shared with the other lane or known from an earlier life.
                    text = (
                        f"life {life} {number}"
                        if number % 3
                        else f"{['known', 'WRONG', 'DIE1'][run_number % 3]} {number}"
                    )
                    for job in await accepted(service, request(text, run_id=f"run-{run_number}")):
                        accepted_file.write(job.id + "\n")
                    await asyncio.sleep(0.02)

            await asyncio.gather(*(submit(run_number) for run_number in range(3)))


def lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def main(folder: Path, lives: int) -> None:
    draw = random.Random(6)
    for life in range(lives):
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(live(folder, life))
            finally:
                os._exit(1)
        target_lines = lines(folder / "accepted.txt") + 10
        while lines(folder / "accepted.txt") < target_lines:
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "the job service ended by itself"
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


main(Path(sys.argv[1]), int(sys.argv[2]))
