-- KEYS: P G D E I. ARGV: after this seq, how many at most. At least those that come next by
-- reference, and those kept, in no order.
local P, G, D, E, I = unpack(KEYS)
if call('EXISTS', P) == 0 then return 'nopart' end
if call('HEXISTS', G, 'f') == 0 then return 'nogroup' end
local after, room, now = tonumber(ARGV[1]), tonumber(ARGV[2]), read_time(call('HGET', P, 'c'))
local found, seqs = {}, {}
local function add(names, kept)
  if #names == 0 then return end
  local scores = call('ZMSCORE', D, unpack(names))
  each_retry_batch(E, names, function(name, text, at)
    -- Most lie in a batch of their own, and those before the page are not looked into.
    if tonumber(first_seq(name)) <= after and not match(text, '^%d+:%d+/') then return end
    local ms = tonumber(scores[at])
    local taken_ms = ms >= TAKEN and ms - TAKEN
    local history, _, others, reason = parse_retry_batch(text)
    for _, id in ipairs(list_ids(name .. others)) do
      local id_ms, seq = split(id)
      if seq > after then
        local n = #found
        found[n + 1], found[n + 2], found[n + 3] = id,
          taken_ms and -1 or until_us(now, ms), history .. ':' .. reason
        found[n + 4], found[n + 5] = kept, math.max(now - id_ms * 1000, 0)
        found[n + 6] = taken_ms and math.max(now - taken_ms * 1000, 0) or -1
        seqs[#seqs + 1] = seq
      end
    end
  end)
end
-- Whether enough records were found before this one.
local function are_enough(seq)
  if #seqs < room then return false end
  local before = 0
  for _, one in ipairs(seqs) do
    if one < seq then before = before + 1 end
  end
  return before >= room
end
-- Batches of retries of one page may be interlaced: one that begins later ends the list only if
-- enough were found before it.
local page = page_of(after + 1)
while true do
  local first = call('ZRANGEBYSCORE', I, format('%.0f', math.max(page * PAGE, 1)), '+inf', 'LIMIT',
    0, 1)[1]
  if not first or are_enough(tonumber(first_seq(first))) then break end
  page = page_of(tonumber(first_seq(first)))
  local names = beginning_in_page(I, page)
  for from = 1, #names, 100 do
    if are_enough(tonumber(first_seq(names[from]))) then break end
    add({ unpack(names, from, math.min(from + 99, #names)) }, 0)
  end
  page = page + 1
end
add(call('ZREVRANGEBYSCORE', I, '(-' .. ARGV[1], '-inf', 'LIMIT', 0, ARGV[2]), 1)
return found
