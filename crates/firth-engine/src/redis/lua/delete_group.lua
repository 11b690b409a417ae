-- KEYS: P G R V H, then the other keys of the group. ARGV: group, perhaps epoch and token of a hold on the group H. The epoch of
-- its lease stays on record, and so does the largest rank that had it.
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
if g[2] then
  call('HSET', G, 'le', next_epoch(g[2], now_us()), 'lt', '', 'lh', '', 'ld', 0, 'lb', g[3], 'ln', '')
  if g[4] then call('HSET', G, 'lr', g[4]) end
  call('HSET', KEYS[3], ARGV[1], 0)
  call('INCR', KEYS[4])
else
  call('HDEL', KEYS[3], ARGV[1])
end
return 1
