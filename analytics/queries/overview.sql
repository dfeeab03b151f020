-- What period, how many nodes, cards, jobs and entries is this about?
SELECT
  (SELECT min(at) FROM ledger) AS begin, (SELECT max(at) FROM ledger) AS end,
  (SELECT uniqExact(domain, node) FROM node_recorded) AS nodes,
  (SELECT sum(milli) / 1000 FROM capacity_changes) AS cards_now,
  (SELECT count() FROM jobs) AS jobs, (SELECT countIf(ifNull(waited_ms, 1) > 0) FROM jobs) AS jobs_that_waited,
  (SELECT max(used) / 1000 FROM (SELECT sum(sum(milli)) OVER (ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS used FROM card_changes GROUP BY at)) AS cards_peak,
  (SELECT max(there) / 1000 FROM (SELECT sum(sum(milli)) OVER (ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS there FROM capacity_changes GROUP BY at)) AS cards_most,
  (SELECT count() FROM ledger) AS entries
