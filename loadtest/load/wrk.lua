-- Sends a saved payload's bodies one after another; each thread begins at another of them.
-- wrk -s wrk.lua URL -- FOLDER PATH BODIES [NAME VALUE]...
-- Prints one line of JSON for loadtest/load/wrk.py when it ends.

local started = 0

function setup(thread)
  thread:set("first", started)
  started = started + 1
end

function init(args)
  local folder, path, count = args[1], args[2], tonumber(args[3])
  local headers = {}
  for i = 4, #args, 2 do
    headers[args[i]] = args[i + 1]
  end
  messages = {}
  for n = 0, count - 1 do
    local file = assert(io.open(folder .. "/" .. n .. ".body", "rb"))
    messages[n] = wrk.format("POST", path, headers, file:read("*a"))
    file:close()
  end
  bodies, at = count, first
end

function request()
  at = (at + 1) % bodies
  return messages[at]
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '@wrk {"requests":%d,"duration_us":%d,"status":%d,"connect":%d,"read":%d,"write":%d,"timeout":%d,' ..
    '"p50_us":%d,"p90_us":%d,"p99_us":%d,"max_us":%d}\n',
    summary.requests, summary.duration, e.status, e.connect, e.read, e.write, e.timeout,
    latency:percentile(50), latency:percentile(90), latency:percentile(99), latency.max))
end
