-- Passes (nil) only for the newest hold; lease = {epoch, token, holder}.
local function fence(lease, epoch, token)
  if lease[1] ~= epoch or lease[2] ~= token or not lease[3] or lease[3] == '' then return 'fenced' end
end
local function next_epoch(newest, now) return format('%.0f', math.max((tonumber(newest) or 0) + 1, now)) end
