-- KEYS: deadlines, ids (one shard). ARGV: session id. 1 for the one caller who removed it.
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('ZREM', KEYS[1], ARGV[1])
