-- Renew the lease of a replica, and take the list of the sessions that it has lost.
-- KEYS: 1 lease, 2 lost sessions.
-- ARGV: 1 address of the replica, 2 length of the lease in ms.
-- Returns: the ids of the sessions that other replicas have claimed since the last call.
-- Race: a session that is added between two calls is in the answer to the second. None is reported twice or never.
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local lost = redis.call('LRANGE', KEYS[2], 0, -1)
redis.call('DEL', KEYS[2])
return lost
