-- What people ask about most, as views over the ledger's tables. Nothing is stored twice.

-- One row for each attempt: a placement, its start, and how it ended (NULL while it has not).
CREATE VIEW IF NOT EXISTS attempts AS
SELECT
  p.domain AS domain, p.job AS job, p.attempt AS attempt, p.user AS user, p.queue AS queue,
  p.at AS placed_at, p.waited_ms AS waited_ms, p.cards_milli_total AS cards_milli_total,
  p.nodes AS nodes, p.level AS level, p.place AS place,
  s.at AS started_at, e.at AS ended_at, e.outcome AS outcome, e.ran_ms AS ran_ms
FROM job_placed AS p
LEFT JOIN job_started AS s ON s.domain = p.domain AND s.job = p.job AND s.attempt = p.attempt
LEFT JOIN (
  SELECT domain, job, attempt, at, outcome, ran_ms FROM job_ended
  UNION ALL
  SELECT domain, job, attempt, at, 'interrupted' AS outcome, ran_ms FROM job_interrupted
) AS e ON e.domain = p.domain AND e.job = p.job AND e.attempt = p.attempt
SETTINGS join_use_nulls = 1;

-- One row for each accepted job: what was asked, how long it waited for its first placement, and where it stands.
CREATE VIEW IF NOT EXISTS jobs AS
SELECT
  a.domain AS domain, a.job AS job, a.user AS user, a.queue AS queue, a.priority AS priority, a.members AS members,
  toInt64(a.members) * a.cards_milli AS cards_milli_total,
  multiIf(cards_milli_total = 0, '0 no card', cards_milli_total < 1000, '1 part of a card', cards_milli_total = 1000, '2 one card',
          cards_milli_total < 8000, '3 up to 7 cards', '4 8 cards or more') AS size,
  a.submitted_at AS submitted_at, f.first_placed_at AS first_placed_at, f.first_waited_ms AS waited_ms,
  ifNull(f.attempts, 0) AS attempts, e.at AS ended_at, e.ran_ms AS ran_ms,
  multiIf(e.outcome IS NOT NULL, e.outcome, f.attempts IS NULL, 'pending', f.last_outcome IS NOT NULL, 'pending',
          f.last_started_at IS NOT NULL, 'running', 'placed') AS state
FROM job_accepted AS a
LEFT JOIN (
  SELECT
    domain, job, count() AS attempts, argMin(placed_at, attempt) AS first_placed_at, argMin(waited_ms, attempt) AS first_waited_ms,
    argMax(tuple(outcome), attempt).1 AS last_outcome, argMax(tuple(started_at), attempt).1 AS last_started_at
  FROM attempts GROUP BY domain, job
) AS f ON f.domain = a.domain AND f.job = a.job
LEFT JOIN job_ended AS e ON e.domain = a.domain AND e.job = a.job
SETTINGS join_use_nulls = 1;

-- Cards given and given back, milli-cards: the running sum over `at` is what is allocated.
CREATE VIEW IF NOT EXISTS card_changes AS
SELECT domain, placed_at AS at, cards_milli_total AS milli FROM attempts
UNION ALL
SELECT domain, assumeNotNull(ended_at) AS at, -cards_milli_total AS milli FROM attempts WHERE ended_at IS NOT NULL;

-- Cards that came and went with their nodes, milli-cards: the running sum over `at` is what there is.
CREATE VIEW IF NOT EXISTS capacity_changes AS
SELECT domain, at, milli - before AS milli FROM (
  SELECT
    domain, at, milli,
    lagInFrame(milli, 1, 0) OVER (PARTITION BY domain, node ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS before
  FROM (SELECT domain, node, seq, at, if(state = 'up', toInt64(cards_healthy) * 1000, 0) AS milli FROM node_recorded)
)
WHERE milli != before;

-- How long each reason kept each job waiting: from its entry to the job's next one (NULL while it still does).
CREATE VIEW IF NOT EXISTS waits AS
SELECT domain, job, attempt, code, at, if(next_at = toDateTime64(0, 3, 'UTC'), NULL, dateDiff('millisecond', at, next_at)) AS ms
FROM (
  SELECT
    domain, job, attempt, code, at, kind,
    leadInFrame(at, 1, toDateTime64(0, 3, 'UTC')) OVER (PARTITION BY domain, job ORDER BY seq ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS next_at
  FROM (
    SELECT domain, seq, at, job, attempt, code, 'pending' AS kind FROM job_pending
    UNION ALL SELECT domain, seq, at, job, attempt, '' AS code, 'placed' AS kind FROM job_placed
    UNION ALL SELECT domain, seq, at, job, attempt, '' AS code, 'ended' AS kind FROM job_ended
  )
)
WHERE kind = 'pending';

-- The ledger as one list: what happened, in order.
CREATE VIEW IF NOT EXISTS ledger AS
SELECT domain, seq, at, 'engine_started' AS entry, '' AS job, '' AS node, version AS told, source FROM engine_started
UNION ALL SELECT domain, seq, at, 'node_recorded', '', node, concat(state, if(reason = '', '', ': '), reason), source FROM node_recorded
UNION ALL SELECT domain, seq, at, 'link_recorded', '', '', concat(link, ' ', state, if(reason = '', '', ': '), reason), source FROM link_recorded
UNION ALL SELECT domain, seq, at, 'job_accepted', job, '', concat('queue ', queue), source FROM job_accepted
UNION ALL SELECT domain, seq, at, 'job_refused', job, '', concat(code, ': ', reason), source FROM job_refused
UNION ALL SELECT domain, seq, at, 'job_pending', job, '', concat(code, ': ', reason), source FROM job_pending
UNION ALL SELECT domain, seq, at, 'job_placed', job, arrayStringConcat(nodes, ' '), reason, source FROM job_placed
UNION ALL SELECT domain, seq, at, 'job_cancel_requested', job, '', reason, source FROM job_cancel_requested
UNION ALL SELECT domain, seq, at, 'receipt_recorded', job, node, concat(kind, if(reason = '', '', ': '), reason), source FROM receipt_recorded
UNION ALL SELECT domain, seq, at, 'job_started', job, '', concat('attempt ', toString(attempt)), source FROM job_started
UNION ALL SELECT domain, seq, at, 'job_progressed', job, '', concat(toString(round(100 * progress_fraction)), ' %'), source FROM job_progressed
UNION ALL SELECT domain, seq, at, 'job_interrupted', job, '', concat(code, ': ', reason), source FROM job_interrupted
UNION ALL SELECT domain, seq, at, 'job_ended', job, '', concat(outcome, if(reason = '', '', ': '), reason), source FROM job_ended
UNION ALL SELECT domain, seq, at, 'capacity_quarantined', job, node, reason, source FROM capacity_quarantined;
