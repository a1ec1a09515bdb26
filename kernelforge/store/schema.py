"""Tables and views of a results database.

Records are JSON, with a column for each value that is searched for; the views show their parts as tables.
``docs/results.md`` describes both for people who open the file with plain ``sqlite3``.
"""

from __future__ import annotations

from kernelforge.store.database import Schema

_TABLES = """
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
  search TEXT CHECK (search IS NULL OR json_valid(search)),
  tested INTEGER NOT NULL DEFAULT 0 CHECK (tested IN (0, 1)),
  finished TEXT,
  PRIMARY KEY (run, name)
);

CREATE TABLE attempts (
  id TEXT PRIMARY KEY,
  run TEXT NOT NULL,
  task TEXT NOT NULL,
  number INTEGER NOT NULL,
  operator TEXT NOT NULL,
  parent TEXT REFERENCES attempts(id),
  candidate TEXT,
  evaluation_key TEXT NOT NULL,
  source TEXT REFERENCES blobs(sha256),
  plan TEXT REFERENCES blobs(sha256),
  verdict TEXT NOT NULL,
  accepted INTEGER NOT NULL CHECK (accepted IN (0, 1)),
  started TEXT NOT NULL,
  seconds REAL NOT NULL,
  record TEXT NOT NULL CHECK (json_valid(record)),
  UNIQUE (run, task, number),
  FOREIGN KEY (run, task) REFERENCES tasks(run, name)
);
CREATE INDEX attempts_evaluation ON attempts(evaluation_key);

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

CREATE TABLE drafts (
  run TEXT NOT NULL,
  task TEXT NOT NULL,
  step INTEGER NOT NULL,
  proposal TEXT NOT NULL CHECK (json_valid(proposal)),
  content TEXT NOT NULL,
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
  record TEXT NOT NULL CHECK (json_valid(record)),
  PRIMARY KEY (run, task, name),
  FOREIGN KEY (run, task) REFERENCES tasks(run, name)
);
"""

_FIELDS_OF_PARTS = {
    "fingerprint": (
        "device device_kind arch toolchain kernelforge evaluator torch python host jail gpu gpu_uuid driver runtime"
    ),
    "performance": (
        "time_us origin interval_us samples protocol bound speedup speedup_lower speedup_eager quarantined timing"
    ),
    "roofline": "flops dram_bytes compulsory_bytes arithmetic_intensity ridge bound time_us time_origin",
}
"""Fields of objects inside an evaluation or a profile, which its view shows among its own."""

_OBJECTS = {
    "evaluations": ("evaluation", "verdict stage reason lane fingerprint performance"),
    "builds": ("evaluation.build", "key ok refused limit arch toolchain ptx_hash seconds cached kernels diagnostics"),
    "profiles": ("profile", "size device notes roofline"),
    "findings": ("finding", "kind headline why action move metrics bottleneck"),
    "rewards": ("reward", "policy value components"),
}
"""Views with at most one row for each attempt: path of an object in its record, and the object's fields."""

_LISTS = {
    "size_checks": ("evaluation.correctness.sizes", "size status families message error launches"),
    "profile_kernels": ("profile.kernels", "kernel launches grid block sampled hot_spots"),
    "trials": ("trials", "choices rung time_us problem"),
    "messages": ("messages", "agent role provider content usage"),
}
"""Views with a row for each element of a list: path of the list in an attempt's record, and the elements' fields."""


def _columns(json: str, fields: str, prefix: str = "$") -> str:
    return ", ".join(
        _columns(json, _FIELDS_OF_PARTS[field], f"{prefix}.{field}")
        if field in _FIELDS_OF_PARTS
        else f"json_extract({json}, '{prefix}.{field}') AS \"{field}\""
        for field in fields.split()
    )


_METRIC = _columns("m.value", "name value unit origin")

_VIEWS = [
    *(
        f"CREATE VIEW {name} AS SELECT id AS attempt, {_columns('record', fields, f'$.{path}')} "
        f"FROM attempts WHERE json_extract(record, '$.{path}') IS NOT NULL;\n"
        for name, (path, fields) in _OBJECTS.items()
    ),
    *(
        f"CREATE VIEW {name} AS SELECT a.id AS attempt, e.key AS position, {_columns('e.value', fields)} "
        f"FROM attempts a, json_each(a.record, '$.{path}') e;\n"
        for name, (path, fields) in _LISTS.items()
    ),
    f"""
CREATE VIEW metrics AS
  SELECT a.id AS attempt, -1 AS kernel, m.key AS position, {_METRIC}
  FROM attempts a, json_each(a.record, '$.profile.metrics') m
  UNION ALL SELECT a.id, k.key, m.key, {_METRIC}
  FROM attempts a, json_each(a.record, '$.profile.kernels') k, json_each(k.value, '$.metrics') m;

CREATE VIEW timings AS
  SELECT a.id AS attempt, t.key AS stage, t.value AS seconds
  FROM attempts a, json_each(a.record, '$.evaluation.seconds') t;

CREATE VIEW message_texts AS
  SELECT m.attempt, m.position, m.agent, m.role, m.provider, b.content
  FROM messages m JOIN blobs b ON b.sha256 = m.content;

CREATE VIEW attempt_sources AS
  SELECT a.id, a.run, a.task, a.number, a.verdict, a.accepted, s.content AS source, p.content AS plan
  FROM attempts a LEFT JOIN blobs s ON s.sha256 = a.source LEFT JOIN blobs p ON p.sha256 = a.plan;
""",
]

RESULTS = Schema(
    application_id=0x4B464F47,  # "KFOG"
    script=_TABLES + "".join(_VIEWS),
    synchronous="FULL",  # an attempt that was reported must outlive a power cut
)
