-- Mirrors Bucket in crates/core/src/algorithm/bucket.rs.
-- Kept: the instant the bucket is full again, as "ticks" or "ticks:part" microseconds.

-- Third, whether the key holds no bucket.
local function bucket_read(key)
  local kept = get(key)
  if not kept then return 0, 0 end
  local ticks, part = whole(kept, last_instant), 0
  if not ticks then
    ticks, part = string.match(tostring(kept), '^(%d+):(%d+)$')
    ticks, part = whole(ticks, last_instant), whole(part, last_instant)
  end
  if ticks and part then return ticks, part end
  corrupt = corrupt + 1
  return 0, 0, true
end

-- The state seen from now: never in the past, never further ahead than an empty bucket. Third,
-- whether these numbers cannot have left it.
local function bucket_seen(ticks, part, ceiling, ceiling_part, den)
  if part >= den then ticks, part = ticks + 1, 0 end
  if ticks < now then return now, 0, false end
  if ticks < ceiling or ticks == ceiling and part <= ceiling_part then
    return ticks, part, false
  end
  return ceiling, ceiling_part, true
end

-- Whether the cost fits; the state after it, or as seen; and whether that has to be written.
local function bucket_take(ticks, part, cost, cost_part, ceiling, ceiling_part, den)
  local stale
  ticks, part, stale = bucket_seen(ticks, part, ceiling, ceiling_part, den)
  local after, after_part = ticks + cost, part + cost_part
  if after_part >= den then after, after_part = after + 1, after_part - den end
  if after > ceiling or after == ceiling and after_part > ceiling_part then
    return false, ticks, part, stale
  end
  return true, after, after_part, true
end

local function bucket_keep(key, ticks, part)
  if part == 0 then
    redis.call('SET', key, ticks, 'PX', ttl(ticks))
  else
    redis.call('SET', key, string.format('%.0f:%.0f', ticks, part), 'PX', ttl(ticks + 1))
  end
end
-- Only batches need the rest.

-- ARGV: ticks and part of the cost, ticks and part of a full refill, the parts of a tick, and
-- whether a state that these numbers cannot have left is repaired.
local function bucket_tariff(at)
  return {
    cost = ARGV[at] + 0, cost_part = ARGV[at + 1] + 0,
    ceiling = now + ARGV[at + 2], ceiling_part = ARGV[at + 3] + 0,
    den = ARGV[at + 4] + 0, repairs = ARGV[at + 5] == '1',
  }, at + 6
end

local function bucket_open(key)
  local ticks, part, is_corrupt = bucket_read(key)
  return { ticks = ticks, part = part, dirty = false, corrupt = is_corrupt }
end

local function bucket_answer(state)
  say(state.ticks)
  say(state.part)
end

local function bucket_put(state, ticks, part)
  state.ticks, state.part, state.dirty = ticks, part, true
end

local function bucket_try(state, tariff, takes)
  local fits, ticks, part = bucket_take(state.ticks, state.part, tariff.cost, tariff.cost_part,
    tariff.ceiling, tariff.ceiling_part, tariff.den)
  if fits and takes then bucket_put(state, ticks, part) end
  return fits
end

local function bucket_look(state, tariff)
  return bucket_seen(state.ticks, state.part, tariff.ceiling, tariff.ceiling_part, tariff.den)
end

local function bucket_deny(state, tariff)
  local ticks, part, stale = bucket_look(state, tariff)
  if stale and tariff.repairs then bucket_put(state, ticks, part) end
end

local function bucket_give(state, tariff)
  local ticks, part = bucket_look(state, tariff)
  local debt = ticks - now
  if debt == 0 and part == 0 then return end
  if tariff.cost > debt or tariff.cost == debt and tariff.cost_part > part then
    return bucket_put(state, now, 0)
  end
  ticks, part = ticks - tariff.cost, part - tariff.cost_part
  if part < 0 then ticks, part = ticks - 1, part + tariff.den end
  bucket_put(state, ticks, part)
end

-- Takes a take back. What has refilled since is not given again: it would be another's by now. Nor
-- is anything if the clock went back, for then nobody knows how much has.
local function bucket_undo(state, tariff)
  local cost = tariff.cost - (now - tariff.taken_at)
  if cost < 0 or now < tariff.taken_at then return end
  bucket_give(state, {
    cost = cost, cost_part = tariff.cost_part, ceiling = tariff.ceiling,
    ceiling_part = tariff.ceiling_part, den = tariff.den,
  })
end

local function bucket_force(state, tariff)
  if not bucket_try(state, tariff, true) then
    bucket_put(state, tariff.ceiling, tariff.ceiling_part)
  end
end

local function bucket_reset(state)
  bucket_put(state, 0, 0)
end

local function bucket_save(key, state)
  if state.ticks == 0 and state.part == 0 then
    redis.call('DEL', key)
  else
    bucket_keep(key, state.ticks, state.part)
  end
end

local bucket = {
  tariff = bucket_tariff, open = bucket_open, answer = bucket_answer, try = bucket_try,
  deny = bucket_deny, save = bucket_save, give = bucket_give, force = bucket_force,
  reset = bucket_reset, undo = bucket_undo,
}
