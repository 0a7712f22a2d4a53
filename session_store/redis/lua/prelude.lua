-- Functions for all scripts. The gateway sends them before each script.
--
-- Redis runs a script as a whole: no other command runs between its commands. In a cluster, all keys of a call have one
-- hash tag, so that one node has them. Each script says which keys (KEYS) and arguments (ARGV) it gets, what it
-- returns, and which races of concurrent callers it closes. `now` is the caller's time in seconds since the epoch;
-- empty: the clock of this server.

-- Return the time in seconds since the epoch: `given`, or that of this server, which is the same for all replicas.
local function now_s(given)
  if given ~= '' then return tonumber(given) end
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end

-- Return a number of seconds as text, exact to the microsecond.
local function seconds(n)
  return string.format('%.6f', n)
end

-- Return true if a session is live. At its deadline itself, it has expired.
local function is_live(session, now)
  local at = redis.call('HGET', session, 'expires_at')
  return at and now < tonumber(at)
end

-- Count a change of a record, so that copies of callers are known to be out of date.
local function changed(session)
  redis.call('HINCRBY', session, 'version', 1)
end

-- Record the use of a session, and let all its keys expire at its new deadline. `keys`: its record, then its other
-- keys. `confirm`: its client has come back. Return the time of the use, as text.
local function use(keys, now, confirm)
  local f = redis.call('HMGET', keys[1], 'used_at', 'created_at', 'idle_ttl_s', 'max_age_s', 'unconfirmed_ttl_s', 'confirmed')
  local used = math.max(now, tonumber(f[1]))
  local ttl = tonumber(f[3])
  if f[6] == 'false' and not confirm then ttl = math.min(ttl, tonumber(f[5])) end
  local expires = math.min(used + ttl, tonumber(f[2]) + tonumber(f[4]))
  redis.call('HSET', keys[1], 'used_at', seconds(used), 'expires_at', seconds(expires))
  if f[6] == 'false' and confirm then
    redis.call('HSET', keys[1], 'confirmed', 'true')
    changed(keys[1])
  end
  local ms = math.max(1, math.ceil((expires - now) * 1000))
  for _, key in ipairs(keys) do redis.call('PEXPIRE', key, ms) end
  return seconds(used)
end

-- Let a key expire together with the record of its session, or in `fallback` ms if there is no record.
local function live_with(session, key, fallback)
  local left = redis.call('PTTL', session)
  redis.call('PEXPIRE', key, left > 0 and left or fallback)
end

-- Delete the kept request of a stream, and return it; false if there is none. The field `requests` of the log counts
-- the bytes of all kept requests.
local function take_request(log, stream)
  local request = redis.call('HGET', log, 'r:' .. stream)
  if request then
    redis.call('HDEL', log, 'r:' .. stream)
    redis.call('HINCRBY', log, 'requests', 0 - #request)
  end
  return request
end

-- Keep the request of a stream, unless one is kept or there is no room. All requests may have a quarter of `most`, the
-- bytes that the events may have.
local function keep_request(log, stream, request, most)
  if redis.call('HINCRBY', log, 'requests', #request) > tonumber(most) / 4
    or redis.call('HSETNX', log, 'r:' .. stream, request) == 0 then
    redis.call('HINCRBY', log, 'requests', 0 - #request)
  end
end

-- Finish a write of `added` bytes to a log: drop the oldest entries beyond the limits, let the log expire with its
-- session, and wake its followers. `keys`: session record, events, log. `about`: most events, most bytes, nonce,
-- lifetime in ms without a session, topic.
local function logged(keys, added, about)
  local size = redis.call('HINCRBY', keys[3], 'size', added)
  local over = redis.call('XLEN', keys[2]) - tonumber(about[1])
  while over > 0 or (size > tonumber(about[2]) and redis.call('XLEN', keys[2]) > 1) do
    local first = redis.call('XRANGE', keys[2], '-', '+', 'COUNT', math.max(1, over))
    local freed = 0
    for _, entry in ipairs(first) do freed = freed + #entry[2][4] end
    redis.call('XTRIM', keys[2], 'MAXLEN', redis.call('XLEN', keys[2]) - #first)
    size = redis.call('HINCRBY', keys[3], 'size', 0 - freed) -- Redis refuses -0
    over = 0
  end
  live_with(keys[1], keys[2], about[4])
  live_with(keys[1], keys[3], about[4])
  redis.call('PUBLISH', about[5], 'n')
end

-- Let a key live for at least `ms` from now. It never expires earlier than before.
local function keep_for(key, ms)
  if redis.call('PTTL', key) < tonumber(ms) then redis.call('PEXPIRE', key, ms) end
end
