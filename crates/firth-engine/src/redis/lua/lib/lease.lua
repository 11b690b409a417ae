-- Passes (nil) only for the newest hold; lease = {epoch, token, holder}.
local function fence(lease, epoch, token)
  if lease[1] ~= epoch or lease[2] ~= token or not lease[3] or lease[3] == '' then
    return 'fenced'
  end
end
-- A group that is gone, or never came, leaves no lease: P keeps the newest epoch of all of them, so
-- that epochs grow even if the clock goes back.
local function forget_lease(P, G, R, group, epoch)
  local newest = tonumber(call('HGET', P, 'ge') or 0)
  call('HSET', P, 'ge', format('%.0f', math.max(newest, tonumber(epoch))))
  call('UNLINK', G)
  call('HDEL', R, group)
end
local function next_epoch(newest, now)
  return format('%.0f', math.max((tonumber(newest) or 0) + 1, now))
end
