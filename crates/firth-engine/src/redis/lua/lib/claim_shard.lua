-- A claim shard: M epoch, version, roster, clock; W lives of members by number, D their deadlines,
-- X those that are gone, I newest life by name; O offers by the number of their member, F free ones
-- by when they can be granted, H all offers, P payloads, C checkpoints, N names in order.
local M, W, D, X, I, O, F, H, P, C, N = unpack(KEYS)
local LIVES = 100
local function member(number)
  local text = call('HGET', W, number)
  if not text then return nil end
  local m = {}
  m.token, m.ttl, m.joined, m.beats, m.losses, m.capacity, m.presence, m.since, m.name =
    match(text, '^(%x+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d) (%d+) (.*)$')
  return m
end
local function keep(number, m)
  call('HSET', W, number,
    table.concat({ m.token, m.ttl, m.joined, m.beats, m.losses, m.capacity, m.presence, m.since,
      m.name }, ' '))
end
-- The time, without a word of the client.
local function claim_shard_time() return read_time(call('HGET', M, 'c')) end
local function wake() call('HINCRBY', M, 'v', 1) end
-- A sign of life.
local function renew(number, m, now, ttl, capacity)
  if m.capacity ~= capacity then
    call('HINCRBY', M, 'r', 1)
    wake()
  end
  m.beats, m.ttl, m.capacity = format('%.0f', m.beats + 1), format('%.0f', math.floor(ttl / 1000)),
    capacity
  keep(number, m)
  call('ZADD', D, later_ms(now, ttl), number)
end
local function depart(number, m, presence, ms)
  call('ZREM', D, number)
  if call('ZCOUNT', O, number, number) > 0 then
    m.presence, m.since = presence, format('%.0f', ms)
    keep(number, m)
    call('ZADD', X, ms, number)
  else
    call('HDEL', W, number)
  end
  if call('HGET', I, m.name) == number then call('HDEL', I, m.name) end
  call('HINCRBY', M, 'r', 1)
  wake()
end
-- The member if its membership is good.
local function of_member(number, token)
  local m = member(number)
  if m and m.presence == '0' and m.token == token then return m end
end
-- Declares members gone whose time ran out, but not the one that is just giving a sign of life.
local function sweep(ms, except)
  for _, number in ipairs(call('ZRANGEBYSCORE', D, '-inf', ms, 'LIMIT', 0, LIVES)) do
    if number ~= except then depart(number, member(number), '1', ms) end
  end
end
local function next_number(now)
  local epoch = format('%.0f', math.max((tonumber(call('HGET', M, 'e') or 0)) + 1, now))
  call('HSET', M, 'e', epoch)
  return epoch
end
-- An offer: epoch, number of its member (0: free), since, offered, who has or had it.
local function parse(text) return match(text, '^(%d+) (%d+) (%d+) (%d+) (.*)$') end
local function lose(owner)
  local m = owner ~= '0' and member(owner)
  if m and m.presence == '0' then
    m.losses = format('%.0f', m.losses + 1)
    keep(owner, m)
    wake()
  end
end
