-- KEYS: P G D E I. ARGV: after this seq, how many at most. By reference and kept ones apart, each in order.
if call('EXISTS', KEYS[1]) == 0 then return 'nopart' end
if call('HEXISTS', KEYS[2], 'f') == 0 then return 'nogroup' end
local now, found = now_us(), {}
local function add(ids, kept)
  if #ids == 0 then return end
  local scores, entries = call('ZMSCORE', KEYS[3], unpack(ids)), call('HMGET', KEYS[4], unpack(ids))
  for i, id in ipairs(ids) do
    local ms = tonumber(scores[i])
    local n = #found
    local taken_ms = ms >= TAKEN and ms - TAKEN
    found[n + 1], found[n + 2], found[n + 3], found[n + 4] = id, taken_ms and -1 or until_us(now, ms), entries[i], kept
    found[n + 5] = math.max(now - split(id) * 1000, 0)
    found[n + 6] = taken_ms and math.max(now - taken_ms * 1000, 0) or -1
  end
end
add(call('ZRANGEBYSCORE', KEYS[5], '(' .. ARGV[1], '+inf', 'LIMIT', 0, ARGV[2]), 0)
add(call('ZREVRANGEBYSCORE', KEYS[5], '(-' .. ARGV[1], '-inf', 'LIMIT', 0, ARGV[2]), 1)
return found
