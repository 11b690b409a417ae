-- Runs 'a-b,c-d' of sequence numbers, sorted and apart, all beyond the frontier.
local function runs(text)
  local list, n = {}, 0
  for a, b in string.gmatch(text, '(%d+)-(%d+)') do
    n = n + 1
    list[n] = { tonumber(a), tonumber(b) }
  end
  return list
end
-- The index of the first run that ends at or after seq.
local function run_at(list, seq)
  local low, high = 1, #list + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if list[middle][2] < seq then low = middle + 1 else high = middle end
  end
  return low
end
local function contains(list, seq)
  local run = list[run_at(list, seq)]
  return run ~= nil and run[1] <= seq
end
-- Whether `new` has everything of `old` above a mark.
local function covers(new, old, above)
  for _, run in ipairs(old) do
    if run[2] > above then
      local first = math.max(run[1], above + 1)
      local found = new[run_at(new, first)]
      if not found or found[1] > first or found[2] < run[2] then return false end
    end
  end
  return true
end
-- The first number above seq that is not in the list.
local function first_missing(list, seq)
  local run = list[run_at(list, seq + 1)]
  if run and run[1] <= seq + 1 then return run[2] + 1 end
  return seq + 1
end
-- How many numbers of the list lie in from .. to, both included.
local function count_between(list, from, to)
  local count = 0
  for _, run in ipairs(list) do
    local first, last = math.max(run[1], from), math.min(run[2], to)
    if first <= last then count = count + last - first + 1 end
  end
  return count
end
