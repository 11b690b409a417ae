-- KEYS: G R V. ARGV: group, holder, token, ttl in µs, note, epoch and beats that stood still.
local G, now = KEYS[1], now_us()
local lease = call('HMGET', G, 'le', 'lh', 'ld', 'lb')
if lease[1] then
  local stands_still = lease[1] == ARGV[6] and lease[4] == ARGV[7]
  local left = until_us(now, tonumber(lease[3]))
  if lease[2] ~= '' and left > 0 and not stands_still then
    return { 0, lease[1], lease[2], left, tonumber(lease[4]), call('HGET', G, 'ln') }
  end
else
  call('HSETNX', KEYS[2], ARGV[1], 0)
end
local epoch = next_epoch(lease[1], now)
call('HSET', G, 'le', epoch, 'lt', ARGV[3], 'lh', ARGV[2], 'ld', later_ms(now, tonumber(ARGV[4])), 'lb', (lease[4] or 0) + 1, 'ln', ARGV[5])
call('INCR', KEYS[3])
return { 1, epoch }
