-- Logical time of a store unit (partition, claim shard, pool): the server's clock plus an offset
-- that takes back its steps. The rule and its reasons stand in src/clock.rs. The unit's hash keeps
-- 'offset last' in its field c, in µs; nothing kept is offset 0, and so is a text that is damaged.
local STEP, TRUST, FAR, SHRINK, KEEP = 2000000, 60000000, 2592000000000, 20, 30000000
-- Larger numbers are not exact.
local EXACT = 9007199254740991
-- The logical time when the server's clock shows `wall`, and whether the clock stepped.
local function logical(wall, offset, last, expected, slack)
  local now = wall + offset
  if offset ~= 0 then
    local most = math.min(math.floor(math.max(now - last, 0) / SHRINK), math.abs(offset))
    if offset > 0 then now = now - most else now = now + most end
  end
  -- A client that is behind what was kept is refuted.
  if expected and expected + slack < last then expected = nil end
  local reference = expected and expected > last and expected or last
  if expected and now > reference + slack then
    return now - reference < FAR and reference or math.max(reference, wall), true
  end
  if expected and expected > last and expected <= last + TRUST and now + slack < expected then
    return expected, true
  end
  if now + STEP < last then return last, true end
  return now, false
end
local function parse_clock(text)
  local offset, last = match(text or '', '^(%-?%d+) (%d+)$')
  offset, last = tonumber(offset or 0), tonumber(last or 0)
  if math.abs(offset) > EXACT or last > EXACT then return 0, 0 end
  return offset, last
end
-- The time by what the unit keeps.
local function read_time(text)
  local offset, last = parse_clock(text)
  return (logical(now_us(), offset, last))
end
