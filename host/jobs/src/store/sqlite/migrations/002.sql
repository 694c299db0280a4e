-- The endings that webhooks are still to be told of: few, so that they are found without
-- a look at all jobs, and jobs without a webhook have nothing here.
CREATE TABLE call (
    seq      INTEGER PRIMARY KEY REFERENCES job (seq) ON DELETE CASCADE,
    -- When it is tried next.
    due_ms   INTEGER NOT NULL,
    -- Whose webhook it is: none of them waits for another that is slow.
    receiver TEXT    NOT NULL
) STRICT;

CREATE INDEX call_by_time ON call (due_ms, seq, receiver);
