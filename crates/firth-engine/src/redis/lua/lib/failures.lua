-- The last reason of a record and the failures before it, in one text, the newest first, see
-- failures.rs: 'reason US attempt second member', and RS before each earlier one.
local US, RS, FAILURES, PAST_REASON = '\31', '\30', 8, 256
-- The failures before, with a shorter reason of the last one, and without the oldest.
local function earlier(text)
  local stop = string.find(text, US, 1, true) or #text + 1
  if stop > PAST_REASON + 1 then
    -- Cut before a character, not inside.
    local length = PAST_REASON
    while math.floor((string.byte(text, length + 1) or 0) / 64) == 2 do length = length - 1 end
    text, stop = string.sub(text, 1, length) .. string.sub(text, stop), length + 1
  end
  for _ = 2, FAILURES do
    stop = string.find(text, RS, stop + 1, true)
    if not stop then return text end
  end
  return string.sub(text, 1, stop - 1)
end
local function failed(former, reason, attempt, now_ms, member)
  local text = reason .. US .. attempt .. ' ' .. string.sub(now_ms, 1, -4) .. ' ' .. member
  return former and text .. RS .. earlier(former) or text
end
