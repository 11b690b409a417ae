-- KEYS: G of each group, all of one partition, then P. ARGV: ttl in µs, then epoch and token of
-- each.
local P = table.remove(KEYS)
local head = call('HMGET', P, 'l', 'c')
local now = keep_time(head[1] and P, head[2])
local deadline, renewed = later_ms(now, tonumber(ARGV[1])), { now }
for i, G in ipairs(KEYS) do
  local lease = call('HMGET', G, 'le', 'lt', 'lh', 'lb')
  if fence(lease, ARGV[2 * i], ARGV[2 * i + 1]) then
    renewed[i + 1] = 0
  else
    call('HSET', G, 'ld', deadline, 'lb', lease[4] + 1)
    renewed[i + 1] = 1
  end
end
return renewed
