-- How many cards were allocated, of how many, over time? Averages over each bucket, weighted by time.
-- param bucket_s UInt32 = 86400
WITH
  changes AS (
    SELECT at, milli AS used, 0 AS there FROM card_changes
    UNION ALL SELECT at, 0 AS used, milli AS there FROM capacity_changes
    UNION ALL
    SELECT arrayJoin(arrayMap(i -> toDateTime64(i * {bucket_s:UInt32}, 3, 'UTC'),
                              range(toUInt32(intDiv(lo, {bucket_s:UInt32}) + 1), toUInt32(intDiv(hi, {bucket_s:UInt32}) + 1)))) AS at,
           0 AS used, 0 AS there
    FROM (SELECT toUnixTimestamp(min(at)) AS lo, toUnixTimestamp(max(at)) AS hi FROM card_changes)
  ),
  levels AS (
    SELECT at, sum(sum(used)) OVER w AS used, sum(sum(there)) OVER w AS there,
           leadInFrame(at, 1, at) OVER (ORDER BY at ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS until
    FROM changes GROUP BY at WINDOW w AS (ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
  )
SELECT
  toDateTime(intDiv(toUnixTimestamp(at), {bucket_s:UInt32}) * {bucket_s:UInt32}, 'UTC') AS bucket,
  round(sum(used * ms) / sum(ms) / 1000, 2) AS cards_allocated,
  round(sum(there * ms) / sum(ms) / 1000, 1) AS cards,
  round(max(used) / 1000, 2) AS peak
FROM (SELECT at, used, there, dateDiff('millisecond', at, until) AS ms FROM levels)
GROUP BY bucket
HAVING sum(ms) > 0
ORDER BY bucket
