-- ARGV: number, beats that stood still.
local m = member(ARGV[1])
if not m or m.presence ~= '0' or m.beats ~= ARGV[2] then return 0 end
depart(ARGV[1], m, '1', math.floor(claim_shard_time() / 1000))
return 1
