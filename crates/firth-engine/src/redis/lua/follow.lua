-- Takes entries of a followed stream in. KEYS: P S. ARGV: the entry that it stood at, the one that
-- it stands at now, blobs...
local head = call('HMGET', KEYS[1], 'l', 'v', 'm', 'ai', 'c')
if not head[1] then return 'nopart' end
-- Another process took them in.
if head[4] ~= ARGV[1] then return 0 end
if ARGV[3] then write_blobs(KEYS[1], KEYS[2], read_time(head[5]), head, ARGV, 3) end
call('HSET', KEYS[1], 'ai', ARGV[2])
return 1
