-- The other rows of the bucket cannot be waited for while this one is held.
RAISE EXCEPTION 'could not serialize access to a sharded bucket'
  USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
