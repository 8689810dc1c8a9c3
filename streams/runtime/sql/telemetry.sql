-- What the worker measures (decision 12).

-- name: count_in_doubt
SELECT count(*) AS effects FROM effects WHERE status = 'in_doubt';
