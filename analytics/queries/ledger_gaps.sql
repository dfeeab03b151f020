-- Is every ledger entry here exactly once? `missing` and `doubled` are 0 when it is.
SELECT domain, count() AS entries, max(seq) AS newest, max(seq) - uniqExact(seq) AS missing, count() - uniqExact(seq) AS doubled
FROM ledger
GROUP BY domain
ORDER BY domain
