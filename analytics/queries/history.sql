-- What happened to one job, in order?
-- param job String
SELECT seq, at, entry, node, told, source
FROM ledger
WHERE job = {job:String}
ORDER BY domain, seq
