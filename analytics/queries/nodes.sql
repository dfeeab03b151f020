-- How many attempts did each node run, and how many of them broke off?
SELECT node, count() AS attempts, countIf(outcome = 'interrupted') AS interrupted, countIf(outcome = 'failed') AS failed
FROM (SELECT arrayJoin(nodes) AS node, outcome FROM attempts)
GROUP BY node
ORDER BY attempts DESC, node
