-- KEYS: the trail. ARGV: how many events it keeps, for how many seconds, then events.
for i = 3, #ARGV do redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'event', ARGV[i]) end
redis.call('EXPIRE', KEYS[1], ARGV[2])
