-- KEYS: G R V P. ARGV: group, holder, token, ttl in µs, note, epoch and beats that stood still,
-- rank.
local G, P, rank = KEYS[1], KEYS[4], tonumber(ARGV[8])
local head = call('HMGET', P, 'l', 'c', 'ge')
if not head[1] then return 'nopart' end
local now = keep_time(P, head[2])
local newest
local lease = call('HMGET', G, 'le', 'lh', 'ld', 'lb', 'lr')
if lease[1] then
  local left = until_us(now, tonumber(lease[3]))
  local is_held
  if rank then
    is_held = (tonumber(lease[5]) or 0) > rank
  else
    local stands_still = lease[1] == ARGV[6] and lease[4] == ARGV[7]
    is_held = lease[2] ~= '' and left > 0 and not stands_still
  end
  if is_held then
    return { now, 0, lease[1], lease[2], left, tonumber(lease[4]), call('HGET', G, 'ln') }
  end
else
  call('HSETNX', KEYS[2], ARGV[1], 0)
  newest = head[3]
end
local epoch = next_epoch(lease[1] or newest, now)
call('HSET', G, 'le', epoch, 'lt', ARGV[3], 'lh', ARGV[2], 'ld', later_ms(now, tonumber(ARGV[4])),
  'lb', (lease[4] or 0) + 1, 'ln', ARGV[5])
if rank then call('HSET', G, 'lr', ARGV[8]) end
call('INCR', KEYS[3])
return { now, 1, epoch }
