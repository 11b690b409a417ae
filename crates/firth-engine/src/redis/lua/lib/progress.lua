-- Progress only grows and stays within the log. Answers a refusal, or nil with the old and new runs and frontiers.
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
local function store_progress(G, f, a, new, nseq, crash_seq, due)
  if first_missing(new, nseq) ~= tonumber(crash_seq) then
    call('HSET', G, 'f', f, 'a', a, 'n', due, 'c', 0)
  else
    call('HSET', G, 'f', f, 'a', a, 'n', due)
  end
end
