-- Calls of many sessions. A Lua table in a file says what is sent: `sessions` (values of the header `carrier`), `headers`,
-- and `bodies`, of which session number n sends the one that its number falls on. wrk does not tell a script which
-- connection asks, so each thread takes its sessions in turn; with as many connections as sessions, each session has
-- about one call in flight.
local threads = 0
local turn = 0

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

function init(args)
  load = dofile(args[1])
  turn = number * math.floor(#load.sessions / 2)
end

function request()
  turn = turn % #load.sessions + 1
  load.headers[load.carrier] = load.sessions[turn]
  local body = load.bodies[turn % #load.bodies + 1]
  if load.names then load.headers["Mcp-Name"] = load.names[turn % #load.bodies + 1] end
  return wrk.format("POST", nil, load.headers, body)
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('RESULT {"requests":%d,"duration_us":%d,"errors":%d,"p50_us":%d,"p99_us":%d,"bytes":%d}\n',
    summary.requests, summary.duration, e.connect + e.read + e.write + e.timeout + e.status,
    latency:percentile(50), latency:percentile(99), summary.bytes))
end
