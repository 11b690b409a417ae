-- KEYS: P R. ARGV: stream, after which entry, field of the key, field of the payload, 1 to remove entries. A partition that a crash left
-- behind unused is taken as if it were new.
local last = call('HGET', KEYS[1], 'l')
if last and (last ~= '0-0' or call('EXISTS', KEYS[2]) == 1) then return 0 end
if not last then call('HSET', KEYS[1], 'l', '0-0', 't', '0-0', 'v', now_us(), 'm', 0, 'y', 0, 'n', 0) end
call('HSET', KEYS[1], 'as', ARGV[1], 'ai', ARGV[2], 'ak', ARGV[3], 'ap', ARGV[4], 'ax', ARGV[5])
return 1
