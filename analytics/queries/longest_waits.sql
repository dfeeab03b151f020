-- Which jobs waited longest for their first placement?
-- param top UInt32 = 20
SELECT job, user, queue, substring(size, 3) AS size, round(waited_ms / 1000, 1) AS waited_s, state
FROM jobs
WHERE waited_ms IS NOT NULL
ORDER BY waited_ms DESC, job
LIMIT {top:UInt32}
