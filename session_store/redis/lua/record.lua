-- Append events to one part of the audit trail, and drop the oldest.
-- KEYS: 1 stream of events.
-- ARGV: 1 most events, 2 lifetime in seconds, then events as JSON.
for i = 3, #ARGV do redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'event', ARGV[i]) end
redis.call('EXPIRE', KEYS[1], ARGV[2])
