-- The shards.
bucket_shards integer[]; -- how many a bucket is to have; NULL: one
first_shards integer[]; -- the two drawn
second_shards integer[];
chosen_shards integer[]; -- the fuller one of these
pair_balances double precision[]; -- what those two hold
beyond_rows double precision[]; -- what the others are thought to hold
spare_balances double precision[]; -- what the chosen row had left
asked_counts double precision[]; -- and what was taken from it
others public.rate_limits[]; -- the row of the other one, `rows` having that of the first
prefers_first boolean[]; -- because the other one is in use
looks_at_all boolean[];
widened boolean; -- since the rows were read
is_gathered boolean[]; -- `rows` has what is to be decided on
shares public.rate_limits[]; -- the rows of all buckets that are looked at as a whole
share_balances double precision[];
nth_share integer;
nth_shard integer;
first_shares integer[];
share_counts integer[];
gathered_rows public.rate_limits[];
gathered_limits integer[];
gathered_ats bigint[];
gathered_totals double precision[];
may_drain boolean[]; -- tokens may be taken from single rows, and the others left as they are
is_split boolean[]; -- all of its rows were written by an earlier pass
is_removed boolean[]; -- all of its rows were removed by an earlier pass
was_drained boolean[]; -- of the shares, this one was
is_anchored boolean[]; -- the row of shard 0 is only there to be locked
rows_found public.rate_limits[];
drained public.rate_limits[];
shards_there integer[];
shards_gone integer[];

-- The rows that are being gathered.
parts integer; -- the row in hand is one of so many
looks integer;
look_lacks double precision[];
look_inflows double precision[];
lack double precision; -- to be full, at `bucket.ts`
inflow double precision; -- since then
total double precision;
pairs boolean; -- the two drawn
gathers boolean; -- all
header double precision[];
kept public.rate_limits;
kept_balance double precision;
sums double precision[];
