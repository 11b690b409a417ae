-- The due index D: score = the millisecond when a record is due, or TAKEN while the owner has it.
local TAKEN = 9000000000000000
-- As text: the server need not print a number for each record.
local TAKEN_TEXT = format('%.0f', TAKEN)
-- Microseconds until the next untaken record is due; -1 if there is none.
local function next_due(D)
  local first = call('ZRANGEBYSCORE', D, '-inf', '(' .. TAKEN_TEXT, 'WITHSCORES', 'LIMIT', 0, 1)
  if not first[2] then return -1 end
  return until_us(now_us(), tonumber(first[2]))
end
