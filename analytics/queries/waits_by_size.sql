-- How long did jobs wait for their first placement, by size? Seconds; nothing where none was placed.
SELECT
  substring(size, 3) AS size,
  countIf(waited_ms IS NOT NULL) AS placed,
  countIf(waited_ms IS NULL AND state = 'pending') AS waiting,
  if(placed = 0, NULL, round(quantileExactIf(0.5)(assumeNotNull(waited_ms), waited_ms IS NOT NULL) / 1000, 1)) AS p50_s,
  if(placed = 0, NULL, round(quantileExactIf(0.9)(assumeNotNull(waited_ms), waited_ms IS NOT NULL) / 1000, 1)) AS p90_s,
  if(placed = 0, NULL, round(quantileExactIf(0.99)(assumeNotNull(waited_ms), waited_ms IS NOT NULL) / 1000, 1)) AS p99_s,
  if(placed = 0, NULL, round(maxIf(assumeNotNull(waited_ms), waited_ms IS NOT NULL) / 1000, 1)) AS max_s
FROM jobs
GROUP BY jobs.size AS class
ORDER BY class
