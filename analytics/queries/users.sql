-- Who used how many card-hours?
SELECT
  user, count() AS attempts, uniqExact(job) AS jobs,
  round(sum(dateDiff('millisecond', placed_at, ifNull(ended_at, (SELECT max(at) FROM ledger))) * cards_milli_total) / 3.6e9, 1) AS card_hours
FROM attempts
GROUP BY user
ORDER BY card_hours DESC, user
