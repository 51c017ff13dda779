-- Returns the rows of a sharded bucket as one row, as of the last time at which any of them was written. The limit is that of the
-- whole bucket; `kept.shards` is the number of its parts.
--
-- The balance of that row can exceed the sum of the rows. While one row was full, its refill was lost although others were
-- not full; a single bucket with the whole rate would have kept it. If a row lacked w tokens at a time s, then calls have
-- taken from it, since any earlier time, at most w plus the refill of the row since then. So, for each of these times, the
-- bucket lacks at most
--   the sum of this over the rows that were written then or later, minus the refill of the whole bucket since then,
-- and it lacks the largest of these differences, or nothing. This is the content of a queue (E. Reich, "On the
-- integrodifferential equation of Takacs", 1958). All of these differences shrink at the whole rate.
CREATE OR REPLACE FUNCTION rate_limit._gather(
  shares rate_limit.rate_limits[], kind text, rate double precision, period bigint, capacity double precision, phase bigint,
  resolution integer
) RETURNS rate_limit.rate_limits LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  kept rate_limit.rate_limits := shares[1];
  parts CONSTANT integer := kept.shards;
  share rate_limit.rate_limits;
  lacks double precision[]; -- the tokens that each row lacked when it was written
  inflows double precision[]; -- the refill of each row since then
  counts double precision[];
BEGIN
  FOREACH share IN ARRAY shares LOOP
    kept.ts := greatest(kept.ts, share.ts);
  END LOOP;
  IF kind = 'concurrency' OR kept.detail[1] = -2 THEN -- The rows are of another kind, and hold no slots or tokens.
    RETURN kept;
  END IF;
  FOR nth IN 1 .. cardinality(shares) LOOP
    share := shares[nth];
    lacks[nth] := CASE
      WHEN kind <> 'sliding_window' AND share.detail IS NULL THEN capacity / parts - least(share.value, capacity / parts)
    END;
    share := rate_limit._adopt(kind, share, kept.ts, rate / parts, period, capacity / parts, phase, resolution);
    -- The refill is the balance of an empty row without a capacity.
    inflows[nth] := CASE
      WHEN lacks[nth] IS NULL THEN 0
      ELSE rate_limit._left(kind, 0, share.ts, NULL, kept.ts, rate / parts, period, 1e300, phase, resolution)
    END;
    share := (rate_limit._take_from(
      kind, share, kept.ts, rate / parts, period, capacity / parts, phase, resolution, 0)).after;
    lacks[nth] := coalesce(lacks[nth], capacity / parts - share.value);
    kept.value := CASE WHEN nth = 1 THEN 0 ELSE kept.value END + share.value;
    FOR place IN 4 .. coalesce(cardinality(share.detail), 0) LOOP
      counts[place] := coalesce(counts[place], 0) + share.detail[place];
    END LOOP;
    kept.detail := share.detail;
    kept.ts := greatest(kept.ts, share.ts);
  END LOOP;
  IF counts IS NOT NULL THEN
    kept.detail := kept.detail[1:2] || rate || counts[4:];
  ELSE
    SELECT capacity - greatest(max(g.lacks + g.inflow * (g.rows - parts)), 0)
    INTO kept.value
    FROM (
      SELECT
        f.inflow,
        sum(f.lack - f.inflow) OVER written_since AS lacks,
        count(*) OVER written_since AS rows
      FROM (
        SELECT u.lack, least(u.inflow, sum(u.lack) OVER ()) AS inflow -- A larger refill has the same effect.
        FROM unnest(lacks, inflows) AS u (lack, inflow)
      ) AS f
      WINDOW written_since AS (ORDER BY f.inflow)
    ) AS g;
  END IF;
  RETURN kept;
END
$function$;
