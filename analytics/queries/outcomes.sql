-- How did jobs end, by queue?
SELECT queue, state AS outcome, count() AS jobs, round(sum(ran_ms * cards_milli_total) / 3.6e9, 1) AS card_hours
FROM jobs
GROUP BY queue, outcome
ORDER BY queue, jobs DESC, outcome
