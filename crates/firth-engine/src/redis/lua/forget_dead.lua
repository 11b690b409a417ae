-- KEYS: P G X T B. ARGV: age in µs and how many at most, or nothing and ids.
if call('EXISTS', KEYS[1]) == 0 then return 'nopart' end
if call('HEXISTS', KEYS[2], 'f') == 0 then return 'nogroup' end
local ids
if ARGV[1] == '' then
  ids = {}
  for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
else
  local oldest = math.ceil((read_time(call('HGET', KEYS[1], 'c')) - tonumber(ARGV[1])) / 1000)
  ids = call('ZRANGEBYSCORE', KEYS[4], '-inf', '(' .. format('%.0f', oldest), 'LIMIT', 0, ARGV[2])
end
if #ids == 0 then return 0 end
local count = call('ZREM', KEYS[3], unpack(ids))
call('ZREM', KEYS[4], unpack(ids))
call('HDEL', KEYS[5], unpack(ids))
return count
