-- Batches of retries of due records, see lib/due.lua. Ids that belong together are one text, 'id id
-- id': most steps touch a batch of retries as a whole, and comparing texts is much cheaper than
-- walking through them. For the same reason no pattern runs over such a text.
local find, sub = string.find, string.sub
local function page_of(seq) return math.floor(seq / PAGE) end
local function first_seq(ids) return match(ids, '^%d+-(%d+)') end
local function last_seq(ids) return match(sub(ids, -21), '-(%d+)$') end
-- 'attempt:crashes', how many records, the other ids with a space before each, reason.
local function parse_retry_batch(text)
  local history, count, at = match(text, '^(%d+:%d+)/?(%d*)()')
  local stop = find(text, ':', at, true)
  return history, tonumber(count) or 1, sub(text, at, stop - 1), sub(text, stop + 1)
end
local function list_ids(text)
  local ids, n = {}, 0
  for id in string.gmatch(text, '%S+') do
    n = n + 1
    ids[n] = id
  end
  return ids
end
-- Calls each(name, text, index) for the batches of retries with these names.
local function each_retry_batch(E, names, each)
  for from = 1, #names, 100 do
    local last = math.min(from + 99, #names)
    for i, text in ipairs(call('HMGET', E, unpack(names, from, last))) do
      if text then each(names[from + i - 1], text, from + i - 1) end
    end
  end
end
-- The names of batches of retries by reference that begin in a page, but not after a number if
-- there is one.
local function beginning_in_page(I, page, up_to)
  return call('ZRANGEBYSCORE', I, format('%.0f', math.max(page * PAGE, 1)),
    format('%.0f', up_to or page * PAGE + PAGE - 1))
end
-- Changes of batches of retries, written together: what is put stands in for what is dropped under
-- the same name.
local function changes() return { times = {}, texts = {}, index = {}, dropped = {} } end
local function drop(from, name) from.dropped[name] = true end
local function put(into, name, time, text, mark)
  local n = #into.times
  into.times[n + 1], into.times[n + 2] = time, name
  into.texts[n + 1], into.texts[n + 2] = name, text
  into.index[n + 1], into.index[n + 2] = mark, name
  into.dropped[name] = nil
end
-- Puts ids by reference as one batch of retries.
local function put_ids(into, count, ids, time, history, reason)
  local space = find(ids, ' ', 1, true)
  if space then
    put(into, sub(ids, 1, space - 1), time,
      history .. '/' .. count .. sub(ids, space) .. ':' .. reason, first_seq(ids))
  else
    put(into, ids, time, history .. ':' .. reason, first_seq(ids))
  end
end
local function put_list(into, list, time, history, reason)
  put_ids(into, #list, table.concat(list, ' '), time, history, reason)
end
local function write(all, D, E, I, K)
  local names = {}
  for name in pairs(all.dropped) do names[#names + 1] = name end
  for from = 1, #names, 1000 do
    local last = math.min(from + 999, #names)
    call('ZREM', D, unpack(names, from, last))
    call('ZREM', I, unpack(names, from, last))
    call('HDEL', E, unpack(names, from, last))
    if K then call('HDEL', K, unpack(names, from, last)) end
  end
  for from = 1, #all.times, 2000 do
    local last = math.min(from + 1999, #all.times)
    call('ZADD', D, unpack(all.times, from, last))
    call('HSET', E, unpack(all.texts, from, last))
    call('ZADD', I, unpack(all.index, from, last))
  end
end
