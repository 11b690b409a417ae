-- KEYS: P S G R. ARGV: group, kind and value of its start.
local head = call('HMGET', KEYS[1], 't', 'l')
if not head[1] then return 'nopart' end
if call('HEXISTS', KEYS[3], 'f') == 1 then return 0 end
local f = start(KEYS[2], head[1], head[2], ARGV[2], ARGV[3])
call('HSET', KEYS[3], 'f', f, 'a', '', 'o', '', 'x', 1, 'c', 0, 'cs', 0)
call('HSET', KEYS[4], ARGV[1], 1)
return 1
