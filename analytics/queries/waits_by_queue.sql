-- How long did jobs wait for their first placement, by queue? Seconds; nothing where none was placed.
SELECT
  queue,
  countIf(waited_ms IS NOT NULL) AS placed,
  countIf(waited_ms IS NULL AND state = 'pending') AS waiting,
  if(placed = 0, NULL, round(quantileExactIf(0.5)(assumeNotNull(waited_ms), waited_ms IS NOT NULL) / 1000, 1)) AS p50_s,
  if(placed = 0, NULL, round(quantileExactIf(0.9)(assumeNotNull(waited_ms), waited_ms IS NOT NULL) / 1000, 1)) AS p90_s,
  if(placed = 0, NULL, round(quantileExactIf(0.99)(assumeNotNull(waited_ms), waited_ms IS NOT NULL) / 1000, 1)) AS p99_s
FROM jobs
GROUP BY queue
ORDER BY queue
