-- A blob holds 1 to 64 records: their number in one byte, their lengths in four bytes each, then
-- the records.
local function length(blob, index)
  local a, b, c, d = string.byte(blob, 4 * index - 2, 4 * index + 1)
  return ((a * 256 + b) * 256 + c) * 256 + d
end
-- Where the record behind the first `count` ones begins.
local function offset(blob, count)
  local at = 2 + 4 * string.byte(blob)
  for i = 1, count do at = at + length(blob, i) end
  return at
end
-- The first `count` records, and the rest.
local function cut(blob, count)
  local total = string.byte(blob)
  local data, middle = 2 + 4 * total, offset(blob, count)
  local head = string.char(count) .. string.sub(blob, 2, 1 + 4 * count)
    .. string.sub(blob, data, middle - 1)
  local tail = string.char(total - count) .. string.sub(blob, 2 + 4 * count, 1 + 4 * total)
    .. string.sub(blob, middle)
  return head, tail
end
