-- ARGV: number, token.
local me = of_member(ARGV[1], ARGV[2])
if not me then return 0 end
depart(ARGV[1], me, '2', math.floor(claim_shard_time() / 1000))
return 1
