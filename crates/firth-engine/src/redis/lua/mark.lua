-- KEYS: P. ARGV: source.
local head = call('HMGET', KEYS[1], 'l', 's:' .. ARGV[1])
if not head[1] then return 'nopart' end
return { head[2] or '' }
