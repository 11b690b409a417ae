-- An append that is neither delayed nor numbered. KEYS: P S. ARGV: blobs.
local head = call('HMGET', KEYS[1], 'l', 'v', 'm')
if not head[1] then return 'nopart' end
return { 0, write_blobs(KEYS[1], KEYS[2], now_us(), head, ARGV, 1) }
