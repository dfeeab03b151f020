-- Which submissions were refused, and why?
SELECT code, count() AS jobs, any(job) AS example, any(reason) AS reason
FROM job_refused
GROUP BY code
ORDER BY jobs DESC, code
