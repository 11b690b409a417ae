-- KEYS: G of each group, all of one partition. ARGV: ttl in µs, then epoch and token of each.
local deadline, renewed = later_ms(now_us(), tonumber(ARGV[1])), {}
for i, G in ipairs(KEYS) do
  local lease = call('HMGET', G, 'le', 'lt', 'lh', 'lb')
  if fence(lease, ARGV[2 * i], ARGV[2 * i + 1]) then
    renewed[i] = 0
  else
    call('HSET', G, 'ld', deadline, 'lb', lease[4] + 1)
    renewed[i] = 1
  end
end
return renewed
