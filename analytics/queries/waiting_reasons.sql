-- What kept jobs waiting most? Who still waits is counted up to the newest entry.
SELECT code, uniqExact(job) AS jobs, count() AS times, round(sum(ifNull(ms, dateDiff('millisecond', at, (SELECT max(at) FROM ledger)))) / 3.6e6, 1) AS hours, countIf(ms IS NULL) AS still
FROM waits
GROUP BY code
ORDER BY hours DESC, jobs DESC
