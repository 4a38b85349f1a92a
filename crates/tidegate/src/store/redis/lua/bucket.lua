-- Mirrors Bucket in crates/core/src/algorithm/bucket.rs.
-- Stored: the instant the bucket is full again, as "ticks" or "ticks:part" microseconds.

-- The third result is whether the key holds another type of value.
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

-- The state as seen from now: never in the past, never further ahead than an empty bucket. The
-- third result is whether these numbers cannot have left it.
local function bucket_seen(ticks, part, ceiling, ceiling_part, den)
  if part >= den then ticks, part = ticks + 1, 0 end
  if ticks < now then return now, 0, false end
  if ticks < ceiling or ticks == ceiling and part <= ceiling_part then
    return ticks, part, false
  end
  return ceiling, ceiling_part, true
end

-- Whether the cost fits; the state after it, or the present one; and whether it must be written.
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
-- whether to repair a state that these numbers cannot have left.
local function bucket_args(at)
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
  append(state.ticks)
  append(state.part)
end

local function bucket_put(state, ticks, part)
  state.ticks, state.part, state.dirty = ticks, part, true
end

local function bucket_try(state, args, takes)
  local fits, ticks, part = bucket_take(state.ticks, state.part, args.cost, args.cost_part,
    args.ceiling, args.ceiling_part, args.den)
  if fits and takes then bucket_put(state, ticks, part) end
  return fits
end

local function bucket_look(state, args)
  return bucket_seen(state.ticks, state.part, args.ceiling, args.ceiling_part, args.den)
end

local function bucket_deny(state, args)
  local ticks, part, stale = bucket_look(state, args)
  if stale and args.repairs then bucket_put(state, ticks, part) end
end

local function bucket_give(state, args)
  local ticks, part = bucket_look(state, args)
  local debt = ticks - now
  if debt == 0 and part == 0 then return end
  if args.cost > debt or args.cost == debt and args.cost_part > part then
    return bucket_put(state, now, 0)
  end
  ticks, part = ticks - args.cost, part - args.cost_part
  if part < 0 then ticks, part = ticks - 1, part + args.den end
  bucket_put(state, ticks, part)
end

-- Returns units of a take after which the bucket was to be full at `owed_until`. Had they not been
-- taken, it would have been full earlier by their time: only what lies before is still owed.
local function bucket_owed(state, args)
  local cost, cost_part, owed = args.cost, args.cost_part, args.owed_until - now
  if owed <= 0 then return end
  if cost >= owed then cost, cost_part = owed, 0 end
  bucket_give(state, {
    cost = cost, cost_part = cost_part, ceiling = args.ceiling,
    ceiling_part = args.ceiling_part, den = args.den,
  })
end

-- When a bucket that was just charged is idle.
local function bucket_idle(state)
  return state.part > 0 and state.ticks + 1 or state.ticks
end

-- Undoes a take. Units that have refilled since are not returned, because they may have been taken
-- again. After the clock went back nothing is returned, because the refill is unknown.
local function bucket_undo(state, args)
  local cost = args.cost - (now - args.taken_at)
  if cost < 0 or now < args.taken_at then return end
  bucket_give(state, {
    cost = cost, cost_part = args.cost_part, ceiling = args.ceiling,
    ceiling_part = args.ceiling_part, den = args.den,
  })
end

local function bucket_force(state, args)
  if not bucket_try(state, args, true) then
    bucket_put(state, args.ceiling, args.ceiling_part)
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
  args = bucket_args, open = bucket_open, answer = bucket_answer, try = bucket_try,
  deny = bucket_deny, save = bucket_save, give = bucket_give, force = bucket_force,
  reset = bucket_reset, undo = bucket_undo, owed = bucket_owed, idle = bucket_idle,
}
