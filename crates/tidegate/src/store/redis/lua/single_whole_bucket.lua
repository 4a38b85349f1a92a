-- One charge on one bucket whose numbers are whole microseconds: most calls are of this kind.
-- ARGV: the cost, a full refill, and whether to repair a state that these numbers cannot have left.
local ticks, part = bucket_read(KEYS[1])
local seen, ceiling, stale = part > 0 and ticks + 1 or ticks, now + ARGV[2], false
if seen < now then
  seen = now
elseif seen > ceiling then
  seen, stale = ceiling, true
end
local after = seen + ARGV[1]
local fits = after <= ceiling
if fits then
  bucket_keep(KEYS[1], after, 0)
elseif stale and ARGV[3] == '1' then
  bucket_keep(KEYS[1], seen, 0)
end
return { now, fits and 1 or 0, ticks, part, corrupt > 0 and corrupt or nil }
