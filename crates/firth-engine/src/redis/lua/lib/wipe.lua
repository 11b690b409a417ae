-- Removes all that belongs to a partition. KEYS: P S Y W U R V, then the stems of the keys of
-- groups, all in one slot.
local function wipe()
  for _, name in ipairs(call('HKEYS', KEYS[6])) do
    local all = {}
    for i = 8, #KEYS do all[i - 7] = KEYS[i] .. name end
    call('UNLINK', unpack(all))
  end
  call('UNLINK', unpack(KEYS, 1, 7))
end
-- The rank of the partition, or nothing if there is none; none was noted before there were ranks.
local function rank_of(P)
  local p = call('HMGET', P, 'l', 'r')
  return p[1] and tonumber(p[2] or 0)
end
