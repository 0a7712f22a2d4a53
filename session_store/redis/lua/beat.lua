-- Renew the lease of a replica, and list the sessions that it has lost.
-- KEYS: 1 lease, 2 lost sessions.
-- ARGV: 1 address of the replica, 2 length of the lease in ms, 3... entries of the last answer that were handled.
-- Returns: the ids of the sessions that other replicas have claimed, and that are not handled yet.
-- Race: an answer can be lost. So an entry stays until a later call says that it was handled, and a claim that follows
-- meanwhile is an entry of its own.
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
for n = 3, #ARGV do
  redis.call('LREM', KEYS[2], 1, ARGV[n])
end
return redis.call('LRANGE', KEYS[2], 0, -1)
