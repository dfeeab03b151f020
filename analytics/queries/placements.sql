-- In how narrow a place did gangs find room, by size?
SELECT substring(size, 3) AS size, level, count() AS placements, round(avg(length(nodes)), 2) AS nodes
FROM attempts
INNER JOIN (SELECT domain, job, size FROM jobs) AS j USING (domain, job)
GROUP BY j.size AS class, level
ORDER BY class, placements DESC
