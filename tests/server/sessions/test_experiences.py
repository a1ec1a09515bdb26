"""The experience stream: every scored trajectory once to each group, also after kills."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kernelforge.client import AsyncClient, Client
from kernelforge.client.models import Claim, ClaimRequest, Experience
from kernelforge.errors import ServerError
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.sessions.experiences import ExperienceStore
from tests.server.socket_server import ServedJobs
from tests.support.inprocess_engine import completion

TASK = "core/gelu"
SCRIPT = Path(__file__).parents[1] / "kill_stream.py"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedJobs]:
    with ServedJobs(tmp_path_factory.mktemp("service")).running() as served:
        yield served


@pytest.fixture
def client(served: ServedJobs) -> Iterator[Client]:
    with Client(served.url) as client:
        yield client


def score(client: Client, run: str, *texts: str, version: int | None = None) -> None:
    client.score_many(
        [
            {"task": TASK, "completion": completion(text), "run_id": run, "policy_version": version, "prompt": "P"}
            for text in texts
        ]
    )


def name(experience: Experience) -> str:
    item = experience.job or experience.session
    assert item is not None
    return item.id


@pytest.mark.slow
def test_a_trajectory_is_a_scored_job_or_a_session_that_is_done(client: Client) -> None:
    score(client, "kinds", "a", "TROUBLE b", "WRONG c")
    session = client.session(TASK, turns=2, run_id="kinds", policy_version=4)
    session.turn(completion("turn 1"), policy_version=5)
    assert len(client.experiences("kinds")) == 2
    session.turn("no kernel")
    first, second, third = client.claim("kinds", 10).experiences
    assert (first.prompt, first.completion) == ("P", completion("a"))
    assert [each.job.result.verdict for each in (first, second)] == ["OK", "WRONG"]
    assert (third.session.id, third.session.done, len(third.session.turns)) == (session.id, True, 2)
    assert client.experiences("kinds", after=first.number, limit=1) == [second]
    session.close()
    assert client.experiences("kinds", after=second.number) == []
    assert client.claim("kinds", 10, group="later").experiences == [first, second]


def test_a_claim_of_nothing_does_not_wait_for_those_who_write(tmp_path: Path) -> None:
    store = ExperienceStore(tmp_path / "server.db")
    caller, request = Caller("mine", scopes=frozenset({"submit"})), ClaimRequest(run_id="r", count=4)
    with closing(store), closing(sqlite3.connect(tmp_path / "server.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert store.claim(caller, request, None).rows == []
        writer.execute(
            "INSERT INTO experiences (owner, run, kind, name) VALUES (?, 'r', 'job', 'a'), ('other', 'r', 'job', 'b')",
            (caller.name,),
        )
        writer.execute("COMMIT")
        first = store.claim(caller, request, None)
        writer.execute("BEGIN IMMEDIATE")
        assert store.claim(caller, request, None).rows == []
        writer.execute("UPDATE leases SET expires_at = 0")
        writer.execute("COMMIT")
        assert [row[2] for row in store.claim(caller, request, None).rows] == [row[2] for row in first.rows] == ["a"]


def test_a_lease_whose_trajectories_were_deleted_in_part_is_not_lost(tmp_path: Path) -> None:
    store = ExperienceStore(tmp_path / "server.db")
    caller, request = Caller("mine", scopes=frozenset({"submit"})), ClaimRequest(run_id="r", count=4)

    def delete(number: int) -> None:
        with store._database.transaction() as db:
            db.execute("DELETE FROM experiences WHERE number = ?", (number,))

    with closing(store):
        with store._database.transaction() as db:
            for name in "abcd":
                db.execute("INSERT INTO experiences (owner, run, kind, name) VALUES ('mine', 'r', 'job', ?)", (name,))
        first = store.claim(caller, request, None)
        delete(1)
        assert store.acknowledge(caller, first.lease) == 3
        with store._database.transaction() as db:
            db.execute("UPDATE leases SET acknowledged = 0, expires_at = 0")
        second = store.claim(caller, ClaimRequest(run_id="r", count=1), None)
        assert [row[0] for row in second.rows] == [2]
        with pytest.raises(RequestRejected, match="went to others"):  # though it has two of its rows still
            store.acknowledge(caller, first.lease)
        third = store.claim(caller, request, None)
        assert [row[0] for row in third.rows] == [3, 4]
        assert store.acknowledge(caller, third.lease) == 2
        delete(2)
        with pytest.raises(RequestRejected, match="all 1 were deleted"):
            store.acknowledge(caller, second.lease)
        assert store.acknowledge(caller, store.claim(caller, request, None).lease) == 0


async def test_consumers_share_and_groups_do_not_and_leases_expire(served: ServedJobs) -> None:
    async with AsyncClient(served.url) as client:
        await client.score_many(
            [{"task": TASK, "completion": completion(f"l{n}"), "run_id": "leases"} for n in range(6)]
        )
        everything = [name(each) for each in await client.experiences("leases")]
        first, second = await client.claim("leases", 2), await client.claim("leases", 2, lease_s=0.01)
        other = await client.claim("leases", 10, group="other")
        assert [name(each) for each in other.experiences] == everything
        assert (await client.acknowledge(first), await client.acknowledge(first)) == (2, 2)
        reclaimed = await client.claim("leases", 3, wait_s=5)
        assert [name(each) for each in reclaimed.experiences] == [*everything[2:4], everything[4]]
        with pytest.raises(ServerError) as lost:
            await client.acknowledge(second)
        assert (lost.value.status, lost.value.code) == (409, "lease_lost")
        assert await client.acknowledge(reclaimed) == 3
        assert [name(each) for each in (await client.claim("leases", 9)).experiences] == everything[5:]
        assert (await client.claim("leases", 9)).experiences == []


def test_stale_trajectories_are_passed_over_for_good(client: Client) -> None:
    with pytest.raises(ServerError, match="policy_version"):
        client.claim("stale", max_staleness=1)
    client.set_run("stale", policy_version=5)
    for version in (None, 3, 4, 5):
        score(client, "stale", f"v{version}", version=version)

    def versions(claim: Claim) -> list[int | None]:
        return [each.job.policy_version for each in claim.experiences if each.job]

    claim = client.claim("stale", 10, max_staleness=1, lease_s=0.01)
    assert (versions(claim), claim.passed_over) == ([4, 5], 2)
    client.set_run("stale", policy_version=6)
    claim = client.claim("stale", 10, max_staleness=1)
    assert (versions(claim), claim.passed_over) == ([5], 1)
    assert client.claim("stale", 10).experiences == []


@pytest.mark.slow
def test_two_kills_lose_nothing_and_give_nothing_twice(tmp_path: Path) -> None:
    used: list[str] = []
    expected = 200
    lock, over = threading.Lock(), time.monotonic() + 120
    killer = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(tmp_path), "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert killer.stdout is not None
    assert killer.stdin is not None
    url = f"http://127.0.0.1:{killer.stdout.readline().strip()}"

    def consume(number: int) -> None:
        claims = 0
        with Client(url, retries=50) as client:
            while len(used) < expected and time.monotonic() < over:
                claim = client.claim("r", 5, lease_s=1.0, wait_s=0.2)
                claims += 1
                if claims % 5 == number:
                    continue  # as if this consumer had been killed
                try:
                    client.acknowledge(claim)
                except ServerError as error:
                    if error.code != "lease_lost":
                        raise
                    continue
                with lock, (tmp_path / "consumed.txt").open("a") as file:
                    for experience in claim.experiences:
                        used.append(name(experience))
                        file.write(f"{name(experience)}\n")

    consumers = [threading.Thread(target=consume, args=(number,)) for number in range(3)]
    try:
        for consumer in consumers:
            consumer.start()
        with Client(url, retries=50) as client:
            requests = [{"task": TASK, "completion": completion(f"s{n}"), "run_id": "r"} for n in range(expected - 2)]
            ids = [job.id for job in client.submit_many(requests)]
            for _ in range(2):
                session = client.session(TASK, turns=1, run_id="r")
                session.turn("no kernel")
                ids.append(session.id)
            for consumer in consumers:
                consumer.join()
            assert {*Counter(used).values()} == {1}
            assert sorted(used) == sorted(ids)
            assert client.claim("r", 5, lease_s=1.0).experiences == []
            assert {name(each) for each in client.claim("r", 256, group="other").experiences} == set(ids)
    finally:
        killer.stdin.close()
        assert killer.wait(30) == 0
