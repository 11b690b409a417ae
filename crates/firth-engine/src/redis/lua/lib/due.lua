-- Due records lie in batches of retries: what failed in one commit with one delay, reason and
-- history is kept, taken and settled together, which costs the server one entry instead of one per
-- record. A batch of retries is named by its first record. D: the millisecond when it is due, or
-- TAKEN plus the one when it was taken while the owner has it. E: 'attempt:crashes:reason', with
-- the number of its records and the ids of all but the first behind the crashes: '2:0/3 5-17
-- 5-19:reason'. I: the number of its first record, negative if the content is kept aside in K; such
-- a batch of retries has no other records. The records of a batch of retries are in order and lie
-- in one page of the log's numbers. G counts all due records in 'n'.
local TAKEN = 9000000000000000
local UNTAKEN = '(9000000000000000'
-- Microseconds until the next untaken record is due; -1 if there is none.
local function next_due(D, now)
  local first = call('ZRANGEBYSCORE', D, '-inf', UNTAKEN, 'WITHSCORES', 'LIMIT', 0, 1)
  if not first[2] then return -1 end
  return until_us(now, tonumber(first[2]))
end
-- How many records are due, by what G says; without a word each batch of retries holds one.
local function due_count(n, D) return tonumber(n) or call('ZCARD', D) end
