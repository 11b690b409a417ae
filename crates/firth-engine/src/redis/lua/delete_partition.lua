-- KEYS: as lib/wipe.lua. ARGV: rank.
local rank = rank_of(KEYS[1])
if not rank or rank >= tonumber(ARGV[1]) then return 0 end
wipe()
return 1
