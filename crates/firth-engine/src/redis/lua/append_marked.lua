-- An append with the mark of a source. KEYS: P S. ARGV: source, epoch (8 bytes, big-endian) and
-- mark in one, blobs...
local P, S, mark = KEYS[1], KEYS[2], ARGV[2]
local field = 's:' .. ARGV[1]
local head = call('HMGET', P, 'l', 'v', 'm', field, 'sn', 'c')
if not head[1] then return 'nopart' end
-- Whether `a` comes before `b`, bytewise; Lua itself compares by the server's locale.
local function is_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end
local kept = head[4]
if kept then
  local epoch = string.sub(mark, 1, 8)
  if is_before(epoch, string.sub(kept, 1, 8)) then return 'oldmark' end
  -- A repetition notes its epoch, so that there is a write for WAIT.
  if not is_before(string.sub(kept, 9), string.sub(mark, 9)) then
    call('HSET', P, field, epoch .. string.sub(kept, 9))
    return { keep_time(P, head[6]), 1, '' }
  end
elseif tonumber(head[5] or 0) >= SOURCES then
  return 'sources'
end
local now, id = keep_time(P, head[6]), ''
if #ARGV > 2 then id = write_blobs(P, S, now, head, ARGV, 3) end
call('HSET', P, field, mark)
if not kept then call('HINCRBY', P, 'sn', 1) end
return { now, 0, id }
