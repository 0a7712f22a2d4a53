-- Calls of many sessions. A Lua table in a file says what is sent: `sessions` (values of the header `carrier`), `headers`,
-- and `bodies`, of which session number n sends the one that its number falls on. wrk does not tell a script which
-- connection asks, so each connection has a thread of its own, and each thread a session: as clients have. With `traced`
-- each call has a `traceparent` of its own.
local threads = 0

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

function init(args)
  load = dofile(args[1])
  local turn = number % #load.sessions + 1
  load.headers[load.carrier] = load.sessions[turn]
  if load.names then load.headers["Mcp-Name"] = load.names[turn % #load.bodies + 1] end
  if load.traced then
    load.headers["traceparent"] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
  end
  call = wrk.format("POST", nil, load.headers, load.bodies[turn % #load.bodies + 1])
end

function request()
  if load.traced then
    local id = string.format("%08x%08x%08x%08x", random(), random(), random(), random())
    return (call:gsub("00%-%x+%-00f067aa0ba902b7", "00-" .. id .. "-00f067aa0ba902b7", 1))
  end
  return call
end

function random()
  return math.random(0, 0xffffffff)
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('RESULT {"requests":%d,"duration_us":%d,"errors":%d,"p50_us":%d,"p99_us":%d,"bytes":%d}\n',
    summary.requests, summary.duration, e.connect + e.read + e.write + e.timeout + e.status,
    latency:percentile(50), latency:percentile(99), summary.bytes))
end
