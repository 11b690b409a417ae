-- KEYS: P G D E I. ARGV: after this seq, how many at most. At least those that come next by
-- reference, and those kept, in no order.
local P, G, D, E, I = unpack(KEYS)
if call('EXISTS', P) == 0 then return 'nopart' end
if call('HEXISTS', G, 'f') == 0 then return 'nogroup' end
local after, room, now, found = tonumber(ARGV[1]), tonumber(ARGV[2]),
  read_time(call('HGET', P, 'c')), {}
local function add(names, kept)
  if #names == 0 then return end
  local scores = call('ZMSCORE', D, unpack(names))
  each_retry_batch(E, names, function(name, text, at)
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
        room = room - 1
      end
    end
  end)
end
add(call('ZREVRANGEBYSCORE', I, '(-' .. ARGV[1], '-inf', 'LIMIT', 0, ARGV[2]), 1)
-- Batches of retries of one page may be interlaced: a page is listed whole.
room = tonumber(ARGV[2])
local page = page_of(after + 1)
while room > 0 do
  local next_one = call('ZRANGEBYSCORE', I, format('%.0f', math.max(page * PAGE, 1)), '+inf',
    'LIMIT', 0, 1)[1]
  if not next_one then break end
  page = page_of(tonumber(first_seq(next_one)))
  add(beginning_in_page(I, page), 0)
  page = page + 1
end
return found
