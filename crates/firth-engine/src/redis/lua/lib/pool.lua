-- A lease of a pool: 'epoch token deadline beats' in L, 'holder note' in N. Released ones leave no
-- trace but the newest epoch of the pool in M, beside the version that changes with every change of
-- hands.
local function parse(text)
  if not text then return nil end
  return match(text, '^(%d+) (%x+) (%d+) (%d+)$')
end
local function changed(M) call('HINCRBY', M, 'v', 1) end
