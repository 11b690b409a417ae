-- KEYS: P Y.
local head = call('HMGET', KEYS[1], 't', 'l', 'y', 'c')
if not head[1] then return 'nopart' end
local first = call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
local next_due = first[2] and until_us(read_time(head[4]), tonumber(first[2])) or -1
return { head[1], head[2], tonumber(head[3]), next_due }
