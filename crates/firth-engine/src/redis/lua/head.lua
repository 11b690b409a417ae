-- What an append without a script must know. KEYS: P S.
local head = call('HMGET', KEYS[1], 'l', 'v', 'm', 'c')
if not head[1] then return 'nopart' end
local newest, time = call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1], call('TIME')
return { head[1], head[2], head[3], head[4], time[1], time[2], newest and newest[1] or '0-0' }
