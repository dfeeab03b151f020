-- What kept jobs waiting most?
SELECT code, uniqExact(job) AS jobs, count() AS times, round(sum(ms) / 3.6e6, 1) AS hours, countIf(ms IS NULL) AS still
FROM waits
GROUP BY code
ORDER BY hours DESC, jobs DESC
