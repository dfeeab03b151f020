-- How many rows does each table hold, and how large are they?
SELECT table AS name, sum(rows) AS rows, formatReadableSize(sum(bytes_on_disk)) AS on_disk
FROM system.parts
WHERE active AND database = currentDatabase() AND table != 'migrations'
GROUP BY table
ORDER BY rows DESC, name
