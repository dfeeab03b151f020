-- Why were attempts interrupted?
SELECT code, count() AS times, uniqExact(job) AS jobs, countIf(requeued) AS requeued, round(sum(ran_ms) / 3.6e6, 1) AS hours_run
FROM job_interrupted
GROUP BY code
ORDER BY times DESC, code
