-- KEYS: P G X B. ARGV: after this seq, how many at most, how many bytes at most.
if call('EXISTS', KEYS[1]) == 0 then return 'nopart' end
if call('HEXISTS', KEYS[2], 'f') == 0 then return 'nogroup' end
local ids = call('ZRANGEBYSCORE', KEYS[3], '(' .. ARGV[1], '+inf', 'LIMIT', 0, ARGV[2])
local bytes, found = tonumber(ARGV[3]), {}
for _, id in ipairs(ids) do
  local body = call('HGET', KEYS[4], id)
  found[#found + 1], found[#found + 2] = id, body
  bytes = bytes - #body
  if bytes <= 0 then break end
end
return { read_time(call('HGET', KEYS[1], 'c')), found }
