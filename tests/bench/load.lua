-- Calls of many sessions: the ids stand in a file, one in a line. wrk does not tell a script which connection asks, so
-- each thread takes its sessions in turn; with as many connections as sessions, each session has about one call in flight.
local sessions = {}
local threads = 0
local turn = 0

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

function init(args)
  for line in io.lines(args[1]) do sessions[#sessions + 1] = line end
  turn = number * math.floor(#sessions / 2)
  tools = tonumber(args[2] or "0")
  arguments = '{"text":"hello","team":"red"}'
  body = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}'
  headers = {
    ["Content-Type"] = "application/json",
    ["Accept"] = "application/json, text/event-stream",
    ["MCP-Protocol-Version"] = "2025-11-25",
    ["Authorization"] = args[3],
  }
end

function request()
  turn = turn % #sessions + 1
  headers["Mcp-Session-Id"] = sessions[turn]
  if tools > 0 then  -- of many servers, each session calls a few tools
    body = string.format('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"s%d__tool%d","arguments":%s}}',
      turn % 20, turn % tools, arguments)
  end
  return wrk.format("POST", nil, headers, body)
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('RESULT {"requests":%d,"duration_us":%d,"errors":%d,"p50_us":%d,"p99_us":%d}\n',
    summary.requests, summary.duration, e.connect + e.read + e.write + e.timeout + e.status,
    latency:percentile(50), latency:percentile(99)))
end
