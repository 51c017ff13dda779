rate BETWEEN 1e-100 AND 1e100 AND period BETWEEN 1 AND 3155760000000000 AND capacity BETWEEN 0 AND 1e100
AND (amount = 0 OR amount >= 1e-100) AND needed <= capacity AND (capacity + amount) * period / rate <= 9e18
