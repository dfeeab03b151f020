-- How many jobs were waiting, over time? The largest number in each bucket.
-- param bucket_s UInt32 = 86400
SELECT toDateTime(intDiv(toUnixTimestamp(at), {bucket_s:UInt32}) * {bucket_s:UInt32}, 'UTC') AS bucket, max(waiting) AS most_waiting
FROM (
  SELECT at, sum(sum(n)) OVER (ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS waiting
  FROM (
    SELECT at, 1 AS n FROM job_accepted
    UNION ALL SELECT at, -1 FROM job_placed
    UNION ALL SELECT at, 1 FROM job_interrupted WHERE requeued
    UNION ALL SELECT at, -1 FROM job_ended WHERE (domain, job) NOT IN (SELECT domain, job FROM job_placed)
  )
  GROUP BY at
)
GROUP BY bucket
ORDER BY bucket
