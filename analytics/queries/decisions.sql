-- How many ledger entries were written, by type, over time?
-- param bucket_s UInt32 = 86400
SELECT toDateTime(intDiv(toUnixTimestamp(at), {bucket_s:UInt32}) * {bucket_s:UInt32}, 'UTC') AS bucket, entry, count() AS entries
FROM ledger
GROUP BY bucket, entry
ORDER BY bucket, entry
