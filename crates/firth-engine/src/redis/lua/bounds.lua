-- KEYS: P Y.
local head = call('HMGET', KEYS[1], 't', 'l', 'y')
if not head[1] then return 'nopart' end
local first = call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
return { head[1], head[2], tonumber(head[3]), first[2] and until_us(now_us(), tonumber(first[2])) or -1 }
