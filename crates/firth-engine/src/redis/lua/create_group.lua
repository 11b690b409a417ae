-- KEYS: P S G R H. ARGV: group, kind and value of its start, perhaps epoch and token of a hold on
-- the group H.
local head = call('HMGET', KEYS[1], 't', 'l')
if not head[1] then return 'nopart' end
if ARGV[4] then
  local refused = fence(call('HMGET', KEYS[5], 'le', 'lt', 'lh'), ARGV[4], ARGV[5])
  if refused then return refused end
end
if call('HEXISTS', KEYS[3], 'f') == 1 then return 0 end
if ARGV[2] == 'existing' then return 'nogroup' end
local f = start(KEYS[2], head[1], head[2], ARGV[2], ARGV[3])
call('HSET', KEYS[3], 'f', f, 'a', '', 'o', '', 'x', 1, 'c', 0, 'cs', 0, 'r', match(f, '%d+$'))
call('HSET', KEYS[4], ARGV[1], 1)
return 1
