-- Tables of a results database, and the views that show more than one part of a record; database.py makes the others.

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
  reasoning TEXT REFERENCES blobs(sha256),
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

CREATE VIEW metrics AS
  SELECT a.id AS attempt, -1 AS kernel, m.key AS position,
    json_extract(m.value, '$.name') AS "name", json_extract(m.value, '$.value') AS "value",
    json_extract(m.value, '$.unit') AS "unit", json_extract(m.value, '$.origin') AS "origin"
  FROM attempts a, json_each(a.record, '$.profile.metrics') m
  UNION ALL SELECT a.id, k.key, m.key,
    json_extract(m.value, '$.name'), json_extract(m.value, '$.value'),
    json_extract(m.value, '$.unit'), json_extract(m.value, '$.origin')
  FROM attempts a, json_each(a.record, '$.profile.kernels') k, json_each(k.value, '$.metrics') m;

CREATE VIEW timings AS
  SELECT a.id AS attempt, t.key AS stage, t.value AS seconds
  FROM attempts a, json_each(a.record, '$.evaluation.seconds') t;

CREATE VIEW message_texts AS
  SELECT m.attempt, m.position, m.agent, m.role, m.provider, b.content, r.content AS reasoning
  FROM messages m JOIN blobs b ON b.sha256 = m.content LEFT JOIN blobs r ON r.sha256 = m.reasoning;

CREATE VIEW attempt_sources AS
  SELECT a.id, a.run, a.task, a.number, a.verdict, a.accepted, s.content AS source, p.content AS plan
  FROM attempts a LEFT JOIN blobs s ON s.sha256 = a.source LEFT JOIN blobs p ON p.sha256 = a.plan;
