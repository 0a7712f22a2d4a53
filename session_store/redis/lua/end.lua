-- KEYS: status, session and what goes with it. ARGV: now, ms the status is kept. 1 for the one caller who ended it.
if not is_live(KEYS[2], now_s(ARGV[1])) then return 0 end
redis.call('DEL', unpack(KEYS, 2))
redis.call('SET', KEYS[1], 'ended', 'PX', ARGV[2])
return 1
