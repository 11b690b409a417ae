-- KEYS: P S Y W U R V, then the stems of the keys of groups, all in one slot.
local existed = call('EXISTS', KEYS[1])
if existed == 1 then
  local groups = call('HKEYS', KEYS[6])
  for _, name in ipairs(groups) do
    local all = {}
    for i = 8, #KEYS do all[i - 7] = KEYS[i] .. name end
    call('UNLINK', unpack(all))
  end
  call('UNLINK', unpack(KEYS, 1, 7))
end
return existed
