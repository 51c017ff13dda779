-- As far down as it may go, and as the time until it is full again can be told.
greatest(
  amount - (1e-9 + 1e-14 * capacity) - max_reserved * (1 + 1e-14),
  capacity + amount - 1e18 * rate / period)
