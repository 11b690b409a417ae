-- KEYS: P G R V H, then the other keys of the group. ARGV: group, perhaps epoch and token of a hold
-- on the group H. Of the group's lease only the epoch stays. A lease that was ranked stays on
-- record, with the largest rank that had it. A lease without a group goes, too, unless it is held:
-- its holder is about to make the group.
local P, G, R = KEYS[1], KEYS[2], KEYS[3]
local head = call('HMGET', P, 'l', 'c')
if not head[1] then return 'nopart' end
if ARGV[2] then
  local refused = fence(call('HMGET', KEYS[5], 'le', 'lt', 'lh'), ARGV[2], ARGV[3])
  if refused then return refused end
end
local g = call('HMGET', G, 'f', 'le', 'lb', 'lr', 'lh', 'ld')
if not g[1] then
  local is_held = g[2] and g[5] ~= '' and until_us(read_time(head[2]), tonumber(g[6])) > 0
  if g[2] and not g[4] and not is_held then forget_lease(P, G, R, ARGV[1], g[2]) end
  return 0
end
call('UNLINK', unpack(KEYS, 6))
if g[4] then
  call('UNLINK', G)
  call('HSET', G, 'le', next_epoch(g[2], now_us()), 'lt', '', 'lh', '', 'ld', 0, 'lb', g[3], 'ln',
    '', 'lr', g[4])
  call('HSET', R, ARGV[1], 0)
elseif g[2] then
  forget_lease(P, G, R, ARGV[1], g[2])
else
  call('UNLINK', G)
  call('HDEL', R, ARGV[1])
end
if g[2] then call('INCR', KEYS[4]) end
return 1
