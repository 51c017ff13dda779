-- A row that cannot be waited for: it comes before those that are held, in the order in which all take them.
RAISE EXCEPTION 'could not serialize access to a bucket'
  USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
