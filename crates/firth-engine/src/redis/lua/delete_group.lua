-- KEYS: P G R V H, then the other keys of the group. ARGV: group, perhaps epoch and token of a hold on the group H. Of its lease
-- only the epoch stays, in P for all groups that are gone, so that epochs grow whatever the clock does. A lease that was ranked
-- stays on record, with the largest rank that had it.
if call('EXISTS', KEYS[1]) == 0 then return 'nopart' end
if ARGV[2] then
  local refused = fence(call('HMGET', KEYS[5], 'le', 'lt', 'lh'), ARGV[2], ARGV[3])
  if refused then return refused end
end
local G = KEYS[2]
local g = call('HMGET', G, 'f', 'le', 'lb', 'lr')
if not g[1] then return 0 end
call('UNLINK', unpack(KEYS, 6))
call('UNLINK', G)
call('HDEL', KEYS[3], ARGV[1])
if g[4] then
  call('HSET', G, 'le', next_epoch(g[2], now_us()), 'lt', '', 'lh', '', 'ld', 0, 'lb', g[3], 'ln', '', 'lr', g[4])
  call('HSET', KEYS[3], ARGV[1], 0)
elseif g[2] then
  local newest = tonumber(call('HGET', KEYS[1], 'ge') or 0)
  call('HSET', KEYS[1], 'ge', format('%.0f', math.max(newest, tonumber(g[2]))))
end
if g[2] then call('INCR', KEYS[4]) end
return 1
