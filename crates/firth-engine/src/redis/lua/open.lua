-- KEYS: P S G D E R. ARGV: group, epoch, token, kind and value of its start if it is new.
local P, S, G, D, E, R = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local head = call('HMGET', P, 't', 'l', 'c')
if not head[1] then return 'nopart' end
local g = call('HMGET', G, 'le', 'lt', 'lh', 'f', 'a', 'o', 'x', 'c', 'cs', 'n', 'r')
local refused = fence(g, ARGV[2], ARGV[3])
if refused then return refused end
local f, a, opened, left, crashes, crash_seq = g[4], g[5], g[6], g[7], tonumber(g[8]),
  tonumber(g[9])
local reach = g[11]
if not f then
  if ARGV[4] == 'existing' then return 'nogroup' end
  f, a, opened, left, crashes, crash_seq = start(S, head[1], head[2], ARGV[4], ARGV[5]), '', '',
    '1', 0, 0
  reach = match(f, '%d+$')
  call('HSET', R, ARGV[1], 1)
  call('HSET', G, 'r', reach)
end
local now = keep_time(P, head[3])
local is_new_owner = opened ~= ARGV[2]
local crashed = is_new_owner and left ~= '1'
-- What the former owner had taken is due again at once.
local taken = call('ZRANGEBYSCORE', D, TAKEN, '+inf')
if #taken > 0 then
  local scores, now_ms = {}, math.floor(now / 1000)
  for i, name in ipairs(taken) do scores[2 * i - 1], scores[2 * i] = now_ms, name end
  for from = 1, #scores, 2000 do
    call('ZADD', D, unpack(scores, from, math.min(from + 1999, #scores)))
  end
  if crashed then
    each_retry_batch(E, taken, function(name, text)
      local attempt, count, rest = match(text, '^(%d+):(%d+)(.*)$')
      call('HSET', E, name, format('%s:%d', attempt, count + 1) .. rest)
    end)
  end
end
if is_new_owner then
  local _, fseq = split(f)
  local _, tseq = split(head[1])
  local _, lseq = split(head[2])
  local list = runs(a)
  local from = math.max(fseq, tseq)
  local had_work = lseq - from - count_between(list, from + 1, lseq) > 0
  local open = first_missing(list, fseq)
  if not (crashed and had_work) then
    crashes = 0
  elseif crash_seq == open then
    crashes = crashes + 1
  else
    crashes = 1
  end
  crash_seq = open
end
call('HSET', G, 'f', f, 'a', a, 'o', ARGV[2], 'x', 0, 'c', crashes, 'cs', crash_seq)
return { now, f, a, crashes, due_count(g[10], D), next_due(D, now), head[2], tonumber(reach or -1) }
