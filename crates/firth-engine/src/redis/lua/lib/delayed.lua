-- Delayed messages lie in Y by their time, in entries: 16 digits, then a blob. The digits are the
-- number of the blob's last message, so that a message keeps its number when an entry is cut.
local function number_of(entry) return string.sub(entry, 1, 16) end
-- The place in Y of the first entry of this time or later whose last number is not smaller.
local function place_of(Y, ms, number)
  -- Entries of one time lie in the order of their numbers.
  local at = call('ZCOUNT', Y, '-inf', '(' .. ms)
  local high = at + call('ZCOUNT', Y, ms, ms)
  while at < high do
    local middle = math.floor((at + high) / 2)
    if number_of(call('ZRANGE', Y, middle, middle)[1]) < number then
      at = middle + 1
    else
      high = middle
    end
  end
  return at
end
