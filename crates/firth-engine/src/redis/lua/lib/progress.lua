-- Refuses an owner that has read a record which the log lost in a crash or a failover: its number
-- may have been given again, to a record that the owner has not seen. Most owners are at the end of
-- the log, and then nothing is looked up.
local function check_seen(P, S, seen, last)
  if seen == last or seen == '0-0' then return nil end
  local ms, seq = split(seen)
  local _, tseq = split(call('HGET', P, 't'))
  if seq <= tseq then return nil end
  local entry = call('XRANGE', S, seen, '+', 'COUNT', 1)[1]
  if not entry then return 'rewound ' .. last end
  local entry_ms, entry_seq = split(entry[1])
  if entry_ms ~= ms or entry_seq - string.byte(entry[2][2]) >= seq then
    return 'rewound ' .. last
  end
end
-- Progress only grows and stays within the log. Answers a refusal, or nil with the old and new runs
-- and frontiers.
local function check_progress(last, f, a, new_f, new_a)
  local lms, lseq = split(last)
  local _, fseq = split(f)
  local nms, nseq = split(new_f)
  local old, new = runs(a), runs(new_a)
  if nseq < fseq or not covers(new, old, nseq) then return 'back ' .. f end
  local furthest = nseq
  if #new > 0 then furthest = math.max(nseq, new[#new][2]) end
  if furthest > lseq or nms > lms then return 'beyond ' .. last end
  return nil, old, new, fseq, nseq
end
local function store_progress(G, f, a, new, nseq, crash_seq, due, reach)
  local fields = { 'f', f, 'a', a, 'n', due }
  if first_missing(new, nseq) ~= tonumber(crash_seq) then fields[7], fields[8] = 'c', 0 end
  if reach ~= '0' then fields[#fields + 1], fields[#fields + 2] = 'r', reach end
  call('HSET', G, unpack(fields))
end
