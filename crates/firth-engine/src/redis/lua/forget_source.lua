-- KEYS: P. ARGV: source.
local P = KEYS[1]
if not call('HGET', P, 'l') then return 'nopart' end
local was_there = call('HDEL', P, 's:' .. ARGV[1])
if was_there == 1 then call('HINCRBY', P, 'sn', -1) end
return { was_there }
