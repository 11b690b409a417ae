-- The last record that no group needs any more. R: groups by name; stems of the keys G and I of
-- groups.
local function floor(R, gstem, istem, lseq)
  local lowest, groups = lseq, call('HGETALL', R)
  for i = 1, #groups, 2 do
    if groups[i + 1] == '1' then
      local g = call('HMGET', gstem .. groups[i], 'f', 'a')
      local _, fseq = split(g[1])
      local own = first_missing(runs(g[2]), fseq) - 1
      local due = call('ZRANGEBYSCORE', istem .. groups[i], 1, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      if due[2] then own = math.min(own, due[2] - 1) end
      lowest = math.min(lowest, own)
    end
  end
  return lowest
end
