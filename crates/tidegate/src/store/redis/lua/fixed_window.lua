-- Mirrors FixedWindow in crates/core/src/algorithm/fixed_window.rs.
-- Stored: "end:count", the first instant after the window and the units counted in it.

-- ARGV: units, limit (-1 if they can never fit), length, shift, and whether denied units count.
local function fixed_window_args(at)
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
  append(state.ends)
  append(state.count)
end

-- The next window is kept within an hour of its start, because the clock may have gone back; a window
-- further ahead is impossible.
local function fixed_window_seen(state, args)
  local ends, window_end = state.ends, args.window_end
  if ends == window_end
      or ends == window_end + args.width and window_end - now <= 3600000000 then
    return ends, state.count, false
  end
  return window_end, 0, ends > window_end
end

local function fixed_window_put(state, ends, count)
  state.ends, state.count, state.dirty = ends, count, true
end

local function fixed_window_try(state, args, takes)
  local ends, count = fixed_window_seen(state, args)
  if count + args.units > args.limit then return false end
  if takes then fixed_window_put(state, ends, count + args.units) end
  return true
end

local function fixed_window_deny(state, args)
  local ends, count, stale = fixed_window_seen(state, args)
  if args.counts then
    fixed_window_put(state, ends, math.min(count + args.units, 4503599627370496))
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

local function fixed_window_give(state, args)
  local ends, count = fixed_window_seen(state, args)
  if count > 0 then fixed_window_put(state, ends, math.max(count - args.units, 0)) end
end

-- Returns units of a take in the window that ends at `owed_until`, if it is not over.
local function fixed_window_owed(state, args)
  if fixed_window_seen(state, args) == args.owed_until then fixed_window_give(state, args) end
end

local function fixed_window_idle(state)
  return state.ends
end

-- Undoes a take if its window is not over; later windows keep their units.
local function fixed_window_undo(state, args)
  local taken_at, width = args.taken_at, args.width
  local ends = fixed_window_seen(state, args)
  if ends == taken_at + width - (taken_at + args.shift) % width then
    fixed_window_give(state, args)
  end
end

local function fixed_window_force(state, args)
  local ends, count, stale = fixed_window_seen(state, args)
  local booked = math.min(args.units, math.max(args.limit - count, 0))
  if booked > 0 or stale then fixed_window_put(state, ends, count + booked) end
end

local function fixed_window_reset(state)
  fixed_window_put(state, 0, 0)
end

local fixed_window = {
  args = fixed_window_args, open = fixed_window_open, answer = fixed_window_answer,
  try = fixed_window_try, deny = fixed_window_deny, give = fixed_window_give,
  force = fixed_window_force, reset = fixed_window_reset, undo = fixed_window_undo, save = fixed_window_save,
  owed = fixed_window_owed, idle = fixed_window_idle,
}
