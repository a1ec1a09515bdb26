"""Tables of a results database, and the check that this version can read it.

``PRAGMA application_id`` says that a file is ours, ``PRAGMA user_version`` which of :data:`MIGRATIONS` it has had.
``docs/results.md`` describes every table for people who open the file with plain ``sqlite3``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Schema(NamedTuple):
    """What an SQLite file of ours has to be."""

    application_id: int
    migrations: tuple[str, ...]
    """Script ``i`` takes a database from version ``i`` to ``i + 1``. Append; never edit one that was released."""
    synchronous: Literal["FULL", "NORMAL"]
    """In WAL mode either survives the kill of every process; ``FULL`` also survives a power cut, at one fsync for each
    transaction."""
    guests: frozenset[str] = frozenset()
    """Tables that others keep in the file over connections of their own, and may have made before it had a schema."""

    @property
    def version(self) -> int:
        return len(self.migrations)


APPLICATION_ID = 0x4B464F47
"""``KFOG``: what ``file`` and SQLite tools show of a results database."""

_VERSION_1 = """
CREATE TABLE blobs (
  sha256 TEXT PRIMARY KEY,
  bytes INTEGER NOT NULL,
  content TEXT NOT NULL
);

CREATE TABLE runs (
  id TEXT PRIMARY KEY,
  state TEXT NOT NULL CHECK (state IN ('running', 'stopped', 'finished')),
  started TEXT NOT NULL,
  ended TEXT,
  kernelforge TEXT NOT NULL,
  suite TEXT NOT NULL,
  suite_digest TEXT NOT NULL,
  device TEXT NOT NULL,
  strategy TEXT NOT NULL,
  coder TEXT NOT NULL,
  judge TEXT NOT NULL,
  config TEXT NOT NULL CHECK (json_valid(config))
);

CREATE TABLE tasks (
  run TEXT NOT NULL REFERENCES runs(id),
  name TEXT NOT NULL,
  suite TEXT NOT NULL,
  title TEXT NOT NULL,
  level INTEGER NOT NULL,
  digest TEXT NOT NULL,
  record TEXT NOT NULL CHECK (json_valid(record)),
  facts TEXT CHECK (facts IS NULL OR json_valid(facts)),
  graph TEXT CHECK (graph IS NULL OR json_valid(graph)),
  finished TEXT,
  PRIMARY KEY (run, name)
);

CREATE TABLE closing_messages (
  run TEXT NOT NULL,
  task TEXT NOT NULL,
  position INTEGER NOT NULL,
  agent TEXT NOT NULL,
  role TEXT NOT NULL,
  provider TEXT NOT NULL,
  content TEXT NOT NULL REFERENCES blobs(sha256),
  PRIMARY KEY (run, task, position),
  FOREIGN KEY (run, task) REFERENCES tasks(run, name)
);

CREATE TABLE attempts (
  id TEXT PRIMARY KEY,
  run TEXT NOT NULL,
  task TEXT NOT NULL,
  number INTEGER NOT NULL,
  operator TEXT NOT NULL,
  parent TEXT REFERENCES attempts(id),
  candidate TEXT,
  lane TEXT,
  source TEXT REFERENCES blobs(sha256),
  plan TEXT REFERENCES blobs(sha256),
  choices TEXT CHECK (choices IS NULL OR json_valid(choices)),
  verdict TEXT NOT NULL,
  accepted INTEGER NOT NULL CHECK (accepted IN (0, 1)),
  note TEXT NOT NULL,
  started TEXT NOT NULL,
  seconds REAL NOT NULL,
  UNIQUE (run, task, number),
  FOREIGN KEY (run, task) REFERENCES tasks(run, name)
);

CREATE TABLE evaluations (
  attempt TEXT PRIMARY KEY REFERENCES attempts(id),
  key TEXT NOT NULL,
  candidate TEXT NOT NULL,
  task_digest TEXT NOT NULL,
  verdict TEXT NOT NULL,
  stage TEXT NOT NULL,
  reason TEXT NOT NULL,
  device TEXT NOT NULL,
  device_kind TEXT NOT NULL,
  arch TEXT NOT NULL,
  toolchain TEXT NOT NULL,
  kernelforge TEXT NOT NULL,
  evaluator TEXT NOT NULL,
  torch TEXT NOT NULL,
  python TEXT NOT NULL,
  host TEXT NOT NULL,
  jail TEXT NOT NULL,
  checked INTEGER NOT NULL,
  time_us REAL,
  origin TEXT,
  interval_low_us REAL,
  interval_high_us REAL,
  samples INTEGER,
  protocol TEXT,
  bound TEXT,
  speedup REAL,
  speedup_lower REAL,
  speedup_eager REAL
);
CREATE INDEX evaluations_key ON evaluations(key);

CREATE TABLE builds (
  attempt TEXT PRIMARY KEY REFERENCES attempts(id),
  key TEXT NOT NULL,
  ok INTEGER NOT NULL,
  refused TEXT,
  "limit" TEXT,
  arch TEXT NOT NULL,
  toolchain TEXT NOT NULL,
  seconds REAL NOT NULL,
  cached INTEGER NOT NULL,
  kernels TEXT NOT NULL CHECK (json_valid(kernels)),
  diagnostics TEXT NOT NULL REFERENCES blobs(sha256)
);

CREATE TABLE size_checks (
  attempt TEXT NOT NULL REFERENCES attempts(id),
  position INTEGER NOT NULL,
  size TEXT NOT NULL,
  status TEXT NOT NULL,
  families TEXT NOT NULL CHECK (json_valid(families)),
  message TEXT NOT NULL,
  error REAL,
  launches INTEGER,
  PRIMARY KEY (attempt, position)
);

CREATE TABLE timings (
  attempt TEXT NOT NULL REFERENCES attempts(id),
  stage TEXT NOT NULL,
  seconds REAL NOT NULL,
  PRIMARY KEY (attempt, stage)
);

CREATE TABLE profiles (
  attempt TEXT PRIMARY KEY REFERENCES attempts(id),
  size TEXT NOT NULL,
  device TEXT NOT NULL,
  flops REAL NOT NULL,
  dram_bytes REAL NOT NULL,
  compulsory_bytes REAL NOT NULL,
  arithmetic_intensity REAL NOT NULL,
  ridge REAL NOT NULL,
  bound TEXT NOT NULL,
  time_us REAL NOT NULL,
  time_origin TEXT NOT NULL
);

CREATE TABLE profile_kernels (
  attempt TEXT NOT NULL REFERENCES profiles(attempt),
  position INTEGER NOT NULL,
  kernel TEXT NOT NULL,
  launches INTEGER NOT NULL,
  grid TEXT NOT NULL,
  block TEXT NOT NULL,
  sampled REAL NOT NULL,
  hot_spots TEXT NOT NULL CHECK (json_valid(hot_spots)),
  PRIMARY KEY (attempt, position)
);

CREATE TABLE metrics (
  attempt TEXT NOT NULL REFERENCES profiles(attempt),
  kernel INTEGER NOT NULL,
  position INTEGER NOT NULL,
  name TEXT NOT NULL,
  value REAL NOT NULL,
  unit TEXT NOT NULL,
  origin TEXT NOT NULL,
  PRIMARY KEY (attempt, kernel, position)
);

CREATE TABLE findings (
  attempt TEXT PRIMARY KEY REFERENCES attempts(id),
  kind TEXT NOT NULL,
  headline TEXT NOT NULL,
  why TEXT NOT NULL,
  action TEXT NOT NULL,
  move TEXT,
  metrics TEXT NOT NULL CHECK (json_valid(metrics))
);

CREATE TABLE messages (
  attempt TEXT NOT NULL REFERENCES attempts(id),
  position INTEGER NOT NULL,
  agent TEXT NOT NULL,
  role TEXT NOT NULL,
  provider TEXT NOT NULL,
  content TEXT NOT NULL REFERENCES blobs(sha256),
  PRIMARY KEY (attempt, position)
);

CREATE TABLE rewards (
  attempt TEXT PRIMARY KEY REFERENCES attempts(id),
  policy TEXT NOT NULL,
  value REAL,
  components TEXT NOT NULL CHECK (json_valid(components))
);

CREATE VIEW attempt_sources AS
  SELECT a.id, a.run, a.task, a.number, a.verdict, a.accepted, s.content AS source, p.content AS plan
  FROM attempts a LEFT JOIN blobs s ON s.sha256 = a.source LEFT JOIN blobs p ON p.sha256 = a.plan;

CREATE VIEW message_texts AS
  SELECT m.attempt, m.position, m.agent, m.role, m.provider, b.content
  FROM messages m JOIN blobs b ON b.sha256 = m.content;
"""

_VERSION_2 = """
ALTER TABLE attempts ADD COLUMN inspirations TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(inspirations));
ALTER TABLE attempts ADD COLUMN coder TEXT NOT NULL DEFAULT '';
ALTER TABLE attempts ADD COLUMN technique TEXT NOT NULL DEFAULT '';
ALTER TABLE builds ADD COLUMN ptx_hash TEXT;
ALTER TABLE findings ADD COLUMN bottleneck TEXT;
ALTER TABLE tasks ADD COLUMN tested INTEGER NOT NULL DEFAULT 0 CHECK (tested IN (0, 1));
ALTER TABLE tasks ADD COLUMN search TEXT CHECK (search IS NULL OR json_valid(search));

CREATE TABLE trials (
  attempt TEXT NOT NULL REFERENCES attempts(id),
  position INTEGER NOT NULL,
  choices TEXT NOT NULL CHECK (json_valid(choices)),
  rung INTEGER NOT NULL,
  time_us REAL,
  problem TEXT NOT NULL,
  PRIMARY KEY (attempt, position)
);

CREATE TABLE task_messages (
  run TEXT NOT NULL,
  task TEXT NOT NULL,
  position INTEGER NOT NULL,
  agent TEXT NOT NULL,
  role TEXT NOT NULL,
  provider TEXT NOT NULL,
  content TEXT NOT NULL REFERENCES blobs(sha256),
  usage TEXT CHECK (usage IS NULL OR json_valid(usage)),
  PRIMARY KEY (run, task, position),
  FOREIGN KEY (run, task) REFERENCES tasks(run, name)
);
INSERT INTO task_messages (run, task, position, agent, role, provider, content)
  SELECT run, task, position, agent, role, provider, content FROM closing_messages;
DROP TABLE closing_messages;

ALTER TABLE messages ADD COLUMN usage TEXT CHECK (usage IS NULL OR json_valid(usage));

CREATE TABLE drafts (
  run TEXT NOT NULL,
  task TEXT NOT NULL,
  step INTEGER NOT NULL,
  proposal TEXT NOT NULL CHECK (json_valid(proposal)),
  content TEXT NOT NULL REFERENCES blobs(sha256),
  PRIMARY KEY (run, task, step),
  FOREIGN KEY (run, task) REFERENCES tasks(run, name)
);

CREATE TABLE lessons (
  run TEXT NOT NULL,
  task TEXT NOT NULL,
  position INTEGER NOT NULL,
  family TEXT NOT NULL,
  text TEXT NOT NULL,
  provider TEXT NOT NULL,
  gain REAL,
  written TEXT NOT NULL,
  PRIMARY KEY (run, task, position),
  FOREIGN KEY (run, task) REFERENCES tasks(run, name)
);
CREATE INDEX lessons_family ON lessons(family);

CREATE TABLE generators (
  run TEXT NOT NULL,
  task TEXT NOT NULL,
  name TEXT NOT NULL,
  plan TEXT NOT NULL REFERENCES blobs(sha256),
  provider TEXT NOT NULL,
  admitted INTEGER NOT NULL CHECK (admitted IN (0, 1)),
  reason TEXT NOT NULL,
  sizes TEXT NOT NULL CHECK (json_valid(sizes)),
  PRIMARY KEY (run, task, name),
  FOREIGN KEY (run, task) REFERENCES tasks(run, name)
);
"""

_VERSION_3 = """
ALTER TABLE evaluations ADD COLUMN gpu TEXT;
ALTER TABLE evaluations ADD COLUMN gpu_uuid TEXT;
ALTER TABLE evaluations ADD COLUMN driver TEXT;
ALTER TABLE evaluations ADD COLUMN runtime TEXT;
ALTER TABLE evaluations ADD COLUMN lane TEXT NOT NULL DEFAULT 'plan';
ALTER TABLE evaluations ADD COLUMN quarantined TEXT;
ALTER TABLE evaluations ADD COLUMN timing TEXT CHECK (timing IS NULL OR json_valid(timing));
"""

_VERSION_4 = """
ALTER TABLE profiles ADD COLUMN notes TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(notes));
"""

MIGRATIONS: tuple[str, ...] = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4)
"""Script ``i`` takes a database from version ``i`` to ``i + 1``. Append; never edit one that was released."""

SCHEMA_VERSION = len(MIGRATIONS)

RESULTS = Schema(APPLICATION_ID, MIGRATIONS, "FULL")  # an attempt that was reported must outlive a power cut

ATTEMPT_TABLES = (
    "evaluations", "builds", "size_checks", "timings", "profiles", "profile_kernels", "metrics", "findings", "messages",
    "rewards", "trials",
)  # fmt: skip
"""Tables with rows that belong to one attempt, parents before children."""
