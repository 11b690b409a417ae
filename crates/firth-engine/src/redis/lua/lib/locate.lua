-- An entry of the stream holds the records of one blob and is named by the id of its last record.
-- The entry that ends at or after an id: ms, first seq, last seq, blob.
local function entry_at(S, id)
  local entry = call('XRANGE', S, id, '+', 'COUNT', 1)[1]
  if not entry then return nil end
  local ms, last = split(entry[1])
  local blob = entry[2][2]
  return ms, last - string.byte(blob) + 1, last, blob
end
-- ms and seq of the last entry up to an id.
local function entry_up_to(S, id)
  local entry = call('XREVRANGE', S, id, '-', 'COUNT', 1)[1]
  if entry then return split(entry[1]) end
end
-- The id of the last record at or before `at`; never before the trimmed mark t, never after the
-- last record l.
local function position(S, t, l, at)
  local tms, tseq = split(t)
  local lms, lseq = split(l)
  local ms, seq = split(at)
  if ms < tms or (ms == tms and seq <= tseq) then return t end
  if ms > lms or (ms == lms and seq >= lseq) then return l end
  local ems, first, last = entry_at(S, at)
  if ems == ms and seq >= first then return at end
  local pms, pseq = entry_up_to(S, '(' .. join(ems, last))
  if not pms or pseq <= tseq then return t end
  return join(pms, pseq)
end
-- The id of the last record that is older than a millisecond.
local function before_ms(S, t, oldest)
  local ms, seq = entry_up_to(S, format('%.0f-0', math.max(oldest, 0)))
  local _, tseq = split(t)
  if not ms or seq <= tseq then return t end
  return join(ms, seq)
end
-- The id of the record with this number: the smallest millisecond whose last record is not before
-- it.
local function find(S, t, l, seq)
  local _, tseq = split(t)
  local high, lseq = split(l)
  if seq <= tseq then return t end
  if seq >= lseq then return l end
  local low = entry_at(S, '-')
  while low < high do
    local middle = math.floor((low + high) / 2)
    local ms, last = entry_up_to(S, format('%.0f-18446744073709551615', middle))
    if ms and last >= seq then high = ms else low = middle + 1 end
  end
  return join(low, seq)
end
-- The frontier of a group that starts at (kind, value). KEYS[1] is P.
local function start(S, t, l, kind, value)
  if kind == 'start' then return t end
  if kind == 'end' then return l end
  if kind == 'after' then return position(S, t, l, value) end
  return before_ms(S, t, math.floor(read_time(call('HGET', KEYS[1], 'c')) / 1000) - tonumber(value))
end
