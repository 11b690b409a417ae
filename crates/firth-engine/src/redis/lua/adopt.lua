-- KEYS: P R. ARGV: stream, after which entry, field of the key, field of the payload, 1 to remove entries. A partition that a crash left
-- behind unused is taken as if it were new. But whoever wrote another wish just now is about to make the topic with it: for ten seconds
-- nobody else's takes its place, so that what is followed is what the topic says.
local p = call('HMGET', KEYS[1], 'l', 'as', 'ak', 'ap', 'ax', 'aw')
if p[1] and (p[1] ~= '0-0' or call('EXISTS', KEYS[2]) == 1) then return 0 end
local now = now_us()
local is_young = p[2] and now - tonumber(p[6] or 0) < 10000000
local is_same = p[2] == ARGV[1] and p[3] == ARGV[3] and p[4] == ARGV[4] and p[5] == ARGV[5]
if is_young then return is_same and 1 or 0 end
if not p[1] then call('HSET', KEYS[1], 'l', '0-0', 't', '0-0', 'v', now, 'm', 0, 'y', 0, 'n', 0) end
call('HSET', KEYS[1], 'as', ARGV[1], 'ai', ARGV[2], 'ak', ARGV[3], 'ap', ARGV[4], 'ax', ARGV[5], 'aw', format('%.0f', now))
return 1
