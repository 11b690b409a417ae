-- The due index D: score = the millisecond when a record is due; TAKEN plus that when it was taken while the owner has it.
local TAKEN = 9000000000000000
local UNTAKEN = '(' .. format('%.0f', TAKEN)
-- Microseconds until the next untaken record is due; -1 if there is none.
local function next_due(D, now)
  local first = call('ZRANGEBYSCORE', D, '-inf', UNTAKEN, 'WITHSCORES', 'LIMIT', 0, 1)
  if not first[2] then return -1 end
  return until_us(now or now_us(), tonumber(first[2]))
end
