-- Stands before every script.

-- Seconds since the epoch: the caller's clock where it brings one, else this server's, one for all replicas.
local function now_s(given)
  if given ~= '' then return tonumber(given) end
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end

local function seconds(n)
  return string.format('%.6f', n)
end

-- Expiry is strict: at the deadline itself the session is gone.
local function is_live(session, now)
  local at = redis.call('HGET', session, 'expires_at')
  return at and now < tonumber(at)
end

-- Copies of the record that callers hold are out of date.
local function changed(session)
  redis.call('HINCRBY', session, 'version', 1)
end

-- When a session goes that is used now, and that deadline for all its keys.
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

-- A key that came after its session lives as long as the session; `fallback` ms where there is none.
local function live_with(session, key, fallback)
  local left = redis.call('PTTL', session)
  redis.call('PEXPIRE', key, left > 0 and left or fallback)
end

-- Delete the request that is kept of a stream, and return it. `requests` counts the bytes of all of them.
local function take_request(log, stream)
  local request = redis.call('HGET', log, 'r:' .. stream)
  if request then
    redis.call('HDEL', log, 'r:' .. stream)
    redis.call('HINCRBY', log, 'requests', 0 - #request)
  end
  return request
end

-- Keep the request of a stream, if the log has room for it: a quarter of the bytes of its events.
local function keep_request(log, stream, request, most)
  if redis.call('HINCRBY', log, 'requests', #request) > tonumber(most) / 4
    or redis.call('HSETNX', log, 'r:' .. stream, request) == 0 then
    redis.call('HINCRBY', log, 'requests', 0 - #request)
  end
end

-- After entries of so many bytes in all were added to a log (keys: session, events, log). The oldest are dropped beyond
-- the bounds. `about`: most events, most bytes, nonce, fallback ms, topic.
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

-- A key of many things lives at least that many ms more.
local function keep_for(key, ms)
  if redis.call('PTTL', key) < tonumber(ms) then redis.call('PEXPIRE', key, ms) end
end
