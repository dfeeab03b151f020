-- Which jobs failed, and how?
-- param top UInt32 = 50
SELECT at, job, user, queue, exit_code, reason, round(ran_ms / 1000, 1) AS ran_s
FROM job_ended
WHERE outcome = 'failed'
ORDER BY at DESC, job
LIMIT {top:UInt32}
