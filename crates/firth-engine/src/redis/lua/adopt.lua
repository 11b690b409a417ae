-- KEYS: P. ARGV: stream, after which entry, field of the key, field of the payload, 1 to remove entries. As create_partition otherwise.
if call('EXISTS', KEYS[1]) == 1 then return 0 end
call('HSET', KEYS[1], 'l', '0-0', 't', '0-0', 'v', now_us(), 'm', 0, 'y', 0, 'n', 0)
call('HSET', KEYS[1], 'as', ARGV[1], 'ai', ARGV[2], 'ak', ARGV[3], 'ap', ARGV[4], 'ax', ARGV[5])
return 1
