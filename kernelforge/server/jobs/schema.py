"""The tables of ``server.db``, which makes accepted jobs outlive the gateway.

A *job* is what a caller asked; a *work* is the evaluation that answers it, shared by all jobs with the same content.
"""

from __future__ import annotations

from kernelforge.store.schema import Schema

_VERSION_1 = """
CREATE TABLE texts (
  sha256 TEXT PRIMARY KEY,
  content TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE works (
  id INTEGER PRIMARY KEY,
  key TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('open', 'done', 'failed', 'dropped')),
  task TEXT NOT NULL,
  task_digest TEXT NOT NULL,
  candidate TEXT NOT NULL,
  source TEXT,
  plan TEXT,
  choices TEXT CHECK (choices IS NULL OR json_valid(choices)),
  profiled INTEGER NOT NULL CHECK (profiled IN (0, 1)),
  tries INTEGER NOT NULL DEFAULT 0,
  deaths INTEGER NOT NULL DEFAULT 0,
  started_at REAL,
  finished_at REAL,
  evaluation TEXT,
  profile TEXT,
  trouble TEXT
);
CREATE INDEX works_open ON works(id) WHERE state = 'open';
CREATE INDEX works_done ON works(key, finished_at) WHERE state = 'done';

CREATE TABLE jobs (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  caller TEXT NOT NULL,
  work INTEGER REFERENCES works(id),
  task TEXT NOT NULL,
  run TEXT NOT NULL,
  policy TEXT NOT NULL,
  policy_version INTEGER,
  priority INTEGER NOT NULL,
  deadline_at REAL,
  profile INTEGER NOT NULL CHECK (profile IN (0, 1)),
  tag TEXT NOT NULL,
  completion TEXT REFERENCES texts(sha256),
  status TEXT NOT NULL CHECK (status IN ('queued', 'finished', 'cancelled', 'expired')),
  submitted_at REAL NOT NULL,
  started_at REAL,
  finished_at REAL,
  tries INTEGER NOT NULL,
  evaluated_at REAL,
  result TEXT,
  CHECK ((status = 'queued') = (result IS NULL))
);
CREATE INDEX jobs_open ON jobs(seq) WHERE status = 'queued';
CREATE INDEX jobs_work ON jobs(work);
CREATE INDEX jobs_completion ON jobs(completion);

CREATE TABLE keys (
  caller TEXT NOT NULL,
  key TEXT NOT NULL,
  job TEXT NOT NULL,
  request TEXT NOT NULL,
  PRIMARY KEY (caller, key)
) WITHOUT ROWID;
CREATE INDEX keys_job ON keys(job);

CREATE TABLE runs (
  run TEXT PRIMARY KEY,
  weight REAL NOT NULL DEFAULT 1,
  min_policy_version INTEGER,
  ended INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
"""

SERVER = Schema(
    application_id=0x4B465356,  # "KFSV"
    migrations=(_VERSION_1,),
    synchronous="NORMAL",
    guests=frozenset({"tokens", "sessions", "turns", "sqlite_sequence"}),
)
"""``server.db``. Only whether a work is open is kept, not whether a worker has it: after a kill all open works are
queued again. A transaction that was committed outlives the kill of the gateway; a power cut may take the last ones."""
