-- KEYS: P S R, then the stems of the keys G and I of groups. ARGV: kind, value, lossy.
local P, S = KEYS[1], KEYS[2]
local head = call('HMGET', P, 't', 'l')
local t, l = head[1], head[2]
if not t then return 'nopart' end
local _, tseq = split(t)
local _, lseq = split(l)
local wanted, known = nil, nil
if ARGV[1] == 'keep' then
  wanted = math.max(lseq - tonumber(ARGV[2]), 0)
else
  if ARGV[1] == 'id' then
    known = position(S, t, l, ARGV[2])
  else
    known = before_ms(S, t, math.floor(read_time(call('HGET', P, 'c')) / 1000) - tonumber(ARGV[2]))
  end
  _, wanted = split(known)
end
local allowed = ARGV[3] == '0' and floor(KEYS[3], KEYS[4], KEYS[5], lseq) or lseq
local target = math.max(math.min(wanted, allowed), tseq)
local removed = target - tseq
if removed > 0 then
  if not known or wanted ~= target then known = find(S, t, l, target) end
  t = known
  call('HSET', P, 't', t)
  -- What retention by size has added up is wrong from here on.
  call('HDEL', P, 'zi', 'zb')
end
return { removed, t, allowed < wanted and 1 or 0 }
