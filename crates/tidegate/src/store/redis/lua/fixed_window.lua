-- Mirrors FixedWindow in crates/core/src/algorithm/fixed_window.rs.
-- Kept: "end:count", the first instant after the window and the units counted in it.

-- ARGV: units, limit (-1 if they can never fit), length, shift, and whether denied units count.
local function fixed_window_tariff(at)
  local length = ARGV[at + 2] + 0
  return {
    units = ARGV[at] + 0, limit = ARGV[at + 1] + 0, width = length,
    shift = ARGV[at + 3] + 0, counts = ARGV[at + 4] == '1',
    window_end = now + length - (now + ARGV[at + 3]) % length,
  }, at + 5
end

local function fixed_window_open(key)
  local kept = get(key)
  if not kept then return { ends = 0, count = 0 } end
  local ends, count = string.match(tostring(kept), '^(%d+):(%d+)$')
  ends, count = whole(ends, last_instant), whole(count, most_units)
  if ends and count then return { ends = ends, count = count } end
  return spoil({ ends = 0, count = 0 })
end

local function fixed_window_answer(state)
  say(state.ends)
  say(state.count)
end

-- The next window is kept within an hour of its start, because the clock may have gone back; a window
-- further ahead is impossible.
local function fixed_window_seen(state, tariff)
  local ends, window_end = state.ends, tariff.window_end
  if ends == window_end
      or ends == window_end + tariff.width and window_end - now <= 3600000000 then
    return ends, state.count, false
  end
  return window_end, 0, ends > window_end
end

local function fixed_window_put(state, ends, count)
  state.ends, state.count, state.dirty = ends, count, true
end

local function fixed_window_try(state, tariff, takes)
  local ends, count = fixed_window_seen(state, tariff)
  if count + tariff.units > tariff.limit then return false end
  if takes then fixed_window_put(state, ends, count + tariff.units) end
  return true
end

local function fixed_window_deny(state, tariff)
  local ends, count, stale = fixed_window_seen(state, tariff)
  if tariff.counts then
    fixed_window_put(state, ends, math.min(count + tariff.units, 4503599627370496))
  elseif stale then
    fixed_window_put(state, ends, count)
  end
end

local function fixed_window_save(key, state)
  if state.ends == 0 then
    redis.call('DEL', key)
  else
    local kept = string.format('%.0f:%.0f', state.ends, state.count)
    redis.call('SET', key, kept, 'PX', ttl(state.ends))
  end
end
-- Only batches need the rest.

local function fixed_window_give(state, tariff)
  local ends, count = fixed_window_seen(state, tariff)
  if count > 0 then fixed_window_put(state, ends, math.max(count - tariff.units, 0)) end
end

-- Takes a take back, if its window is not over: another's units must not go for it.
local function fixed_window_undo(state, tariff)
  local taken_at, width = tariff.taken_at, tariff.width
  local ends = fixed_window_seen(state, tariff)
  if ends == taken_at + width - (taken_at + tariff.shift) % width then
    fixed_window_give(state, tariff)
  end
end

local function fixed_window_force(state, tariff)
  local ends, count, stale = fixed_window_seen(state, tariff)
  local booked = math.min(tariff.units, math.max(tariff.limit - count, 0))
  if booked > 0 or stale then fixed_window_put(state, ends, count + booked) end
end

local function fixed_window_reset(state)
  fixed_window_put(state, 0, 0)
end

local fixed_window = {
  tariff = fixed_window_tariff, open = fixed_window_open, answer = fixed_window_answer,
  try = fixed_window_try, deny = fixed_window_deny, give = fixed_window_give,
  force = fixed_window_force, reset = fixed_window_reset, undo = fixed_window_undo, save = fixed_window_save,
}
