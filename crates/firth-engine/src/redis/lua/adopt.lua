-- KEYS: P. ARGV: rank; then the stream to follow, after which entry, field of the key, field of the
-- payload, 1 to remove entries; or nothing. A late call, with a lower rank, changes nothing.
local P, rank = KEYS[1], tonumber(ARGV[1])
local p = call('HMGET', P, 'l', 'ar', 'as', 'ak', 'ap', 'ax')
if not p[1] then return 'nopart' end
local is_same = (p[3] or '') == (ARGV[2] or '')
  and (not p[3] or p[4] == ARGV[4] and p[5] == ARGV[5] and p[6] == ARGV[6])
local former = tonumber(p[2] or 0)
if rank < former or not is_same and ARGV[2] and p[1] ~= '0-0' then return is_same and 1 or 0 end
if rank > former then call('HSET', P, 'ar', ARGV[1]) end
if is_same then return 1 end
if ARGV[2] then
  call('HSET', P, 'as', ARGV[2], 'ai', ARGV[3], 'a0', ARGV[3], 'ak', ARGV[4], 'ap', ARGV[5], 'ax',
    ARGV[6])
else
  call('HDEL', P, 'as', 'ai', 'a0', 'ak', 'ap', 'ax')
end
return 1
