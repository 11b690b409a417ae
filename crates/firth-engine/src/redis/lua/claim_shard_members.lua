-- First the time, then per member: number, deadline in ms (-1 if it is gone), how many claims,
-- text.
local found = { claim_shard_time() }
local function add(list, is_gone)
  for i = 1, #list, 2 do
    local number, n = list[i], #found
    local held = call('ZCOUNT', O, number, number)
    if not is_gone or held > 0 then
      found[n + 1], found[n + 2] = number, is_gone and -1 or tonumber(list[i + 1])
      found[n + 3], found[n + 4] = held, call('HGET', W, number)
    end
  end
end
add(call('ZRANGE', D, 0, -1, 'WITHSCORES'), false)
add(call('ZRANGE', X, 0, LIVES - 1, 'WITHSCORES'), true)
return found
