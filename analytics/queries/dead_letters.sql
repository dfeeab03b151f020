-- Which messages could not be used, by topic and reason?
SELECT topic, stage, code, count() AS messages, max(at) AS newest, any(reason) AS example
FROM dead_letter
GROUP BY topic, stage, code
ORDER BY messages DESC, topic, code
