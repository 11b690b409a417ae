-- KEYS: P S G D E I K. ARGV: epoch, token, how many at most, how many bytes at most, then ids whose content is known.
local P, S, G, D, E, I, K = unpack(KEYS)
local t = call('HGET', P, 't')
if not t then return 'nopart' end
local g = call('HMGET', G, 'le', 'lt', 'lh', 'f')
local refused = fence(g, ARGV[1], ARGV[2])
if refused then return refused end
if not g[4] then return 'nogroup' end
local now = now_us()
-- As text: the server need not print a number for each record.
local mark = format('%.0f', TAKEN + math.floor(now / 1000))
local ripe = call('ZRANGEBYSCORE', D, '-inf', math.floor(now / 1000), 'LIMIT', 0, ARGV[3])
local found, taken, lost, bytes = {}, {}, {}, tonumber(ARGV[4])
if #ripe > 0 then
  local entries = call('HMGET', E, unpack(ripe))
  local _, tseq = split(t)
  local ems, first, last, blob, index, at
  local some_kept, known = call('EXISTS', K) == 1, {}
  -- What a lossy trim removed is gone for those, too, who still know it.
  local some_gone = #call('ZRANGEBYSCORE', I, 1, tseq, 'LIMIT', 0, 1) > 0
  for i = 5, #ARGV do known[ARGV[i]] = '' end
  local n = 0
  for i, id in ipairs(ripe) do
    local content = not some_gone and known[id] or some_kept and call('HGET', K, id)
    if not content then
      local ms, seq = split(id)
      if seq > tseq then
        content = known[id]
        if not content and (ems ~= ms or seq < first or seq > last) then
          ems, first, last, blob = entry_at(S, id)
          index, at = 0, nil
        end
        if not content and ems == ms and seq >= first then
          -- Records of one blob come in order more often than not: go on from the last one.
          local wanted = seq - first + 1
          if not at or wanted < index then index, at = 1, offset(blob, 0) end
          while index < wanted do at, index = at + length(blob, index), index + 1 end
          content = string.sub(blob, at, at + length(blob, index) - 1)
        end
      end
    end
    if not content then
      lost[#lost + 1] = id
    else
      bytes = bytes - #content
      if bytes < 0 and n > 0 then break end
      found[3 * n + 1], found[3 * n + 2], found[3 * n + 3] = id, entries[i], content
      taken[2 * n + 1], taken[2 * n + 2] = mark, id
      n = n + 1
    end
  end
end
if #taken > 0 then call('ZADD', D, unpack(taken)) end
if #lost > 0 then
  call('ZREM', D, unpack(lost))
  call('ZREM', I, unpack(lost))
  call('HDEL', E, unpack(lost))
end
return { #lost, next_due(D, now), found }
