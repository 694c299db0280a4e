-- What a listing or a rule asks for is a column; what only a job's reader wants is
-- JSON. A status is its place in the order of a life: 0 queued, 1 working, 2 input
-- required, 3 completed, 4 failed, 5 cancelled.

-- What there is one of.
CREATE TABLE store (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    -- The last place that a queued job was given. None is given twice.
    last_place INTEGER NOT NULL,
    -- How many jobs have ended, which would take long to count.
    ended      INTEGER NOT NULL
) STRICT;

INSERT INTO store (one, last_place, ended) VALUES (1, 0, 0);

CREATE TABLE session (
    id          TEXT    NOT NULL PRIMARY KEY,
    incarnation INTEGER NOT NULL,
    created_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE entry (
    session TEXT    NOT NULL,
    number  INTEGER NOT NULL,
    id      TEXT    NOT NULL,
    entry   TEXT    NOT NULL,
    PRIMARY KEY (session, number),
    UNIQUE (session, id)
) STRICT, WITHOUT ROWID;

-- What changes of a job, and what it is found by.
CREATE TABLE job (
    seq         INTEGER PRIMARY KEY,
    id          BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
    parent      TEXT    NOT NULL,
    incarnation INTEGER NOT NULL,
    key         TEXT,
    status      INTEGER NOT NULL,
    -- Of one that is queued, unless a cron schedule is what it waits for.
    place       INTEGER,
    -- Of one that is queued.
    due_ms      INTEGER,
    -- Of one that has ended.
    ended_ms    INTEGER,
    owed        INTEGER NOT NULL,
    life        TEXT    NOT NULL,
    -- Last, so that whoever reads what is before it does not read it.
    stage_input TEXT
) STRICT;

CREATE INDEX job_of_parent ON job (parent, status);
CREATE INDEX job_by_status ON job (status);
CREATE UNIQUE INDEX job_by_key ON job (parent, incarnation, key) WHERE key IS NOT NULL;
CREATE INDEX job_in_queue ON job (parent, due_ms, place) WHERE place IS NOT NULL;
CREATE INDEX job_ended ON job (ended_ms) WHERE ended_ms IS NOT NULL AND owed = 0;
CREATE INDEX job_owed ON job (ended_ms) WHERE ended_ms IS NOT NULL AND owed = 1;
CREATE INDEX job_owed_to ON job (parent, ended_ms) WHERE ended_ms IS NOT NULL AND owed = 1;

-- What a job was spawned with, which nothing changes.
CREATE TABLE spec (
    seq        INTEGER PRIMARY KEY REFERENCES job (seq) ON DELETE CASCADE,
    depth      INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    spec       TEXT    NOT NULL,
    input      TEXT    NOT NULL
) STRICT;

-- What a job has come to, if that is anything.
CREATE TABLE result (
    seq    INTEGER PRIMARY KEY REFERENCES job (seq) ON DELETE CASCADE,
    result TEXT    NOT NULL
) STRICT;

-- The runs that others have followed.
CREATE TABLE past_run (
    seq    INTEGER NOT NULL REFERENCES job (seq) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    run    TEXT    NOT NULL,
    PRIMARY KEY (seq, number)
) STRICT, WITHOUT ROWID;
