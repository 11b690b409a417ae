-- KEYS: as lib/wipe.lua. ARGV: rank. The version starts at the clock, so that a partition made
-- again never repeats one.
local rank = rank_of(KEYS[1])
if rank and rank >= tonumber(ARGV[1]) then return 0 end
if rank then wipe() end
call('HSET', KEYS[1], 'l', '0-0', 't', '0-0', 'v', now_us(), 'm', 0, 'y', 0, 'n', 0, 'r', ARGV[1])
return 1
