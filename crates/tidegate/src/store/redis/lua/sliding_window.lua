-- Mirrors SlidingWindow in crates/core/src/algorithm/sliding_window.rs.
-- Stored: "end:previous:current", the first instant after the newer window and both counts.

-- ARGV: units, limit (-1 if they can never fit), length, microseconds per step, steps per window.
local function sliding_window_args(at)
  local length = ARGV[at + 2] + 0
  return {
    units = ARGV[at] + 0, limit = ARGV[at + 1] + 0, width = length,
    window_end = now + length - now % length,
    step = ARGV[at + 3] + 0, steps = ARGV[at + 4] + 0,
  }, at + 5
end

local function sliding_window_open(key)
  local kept = get(key)
  if not kept then return { ends = 0, previous = 0, current = 0 } end
  local ends, previous, current = string.match(tostring(kept), '^(%d+):(%d+):(%d+)$')
  ends = whole(ends, last_instant)
  -- The largest limit.
  previous, current = whole(previous, 4294967296), whole(current, 4294967296)
  if ends and previous and current then
    return { ends = ends, previous = previous, current = current }
  end
  return spoil({ ends = 0, previous = 0, current = 0 })
end

local function sliding_window_answer(state)
  append(state.ends)
  append(state.previous)
  append(state.current)
end

-- The state advanced to the window of now, its weighted sum, and whether it was impossible.
local function sliding_window_seen(state, args)
  local ends, previous, current = state.ends, state.previous, state.current
  local window_end, width, stale = args.window_end, args.width, false
  local at = now
  if ends == window_end + width and window_end - now <= 3600000000 then
    at = window_end
  elseif ends ~= window_end then
    stale = ends > window_end
    previous = ends + width == window_end and current or 0
    ends, current = window_end, 0
  end
  local weight = args.steps - math.floor((at + width - ends) / args.step)
  return ends, previous, current, math.floor(previous * weight / args.steps) + current, stale
end

local function sliding_window_put(state, ends, previous, current)
  state.ends, state.previous, state.current, state.dirty = ends, previous, current, true
end

local function sliding_window_try(state, args, takes)
  local ends, previous, current, estimate = sliding_window_seen(state, args)
  if estimate + args.units > args.limit then return false end
  if takes then sliding_window_put(state, ends, previous, current + args.units) end
  return true
end

local function sliding_window_deny(state, args)
  local ends, previous, current, _, stale = sliding_window_seen(state, args)
  if stale then sliding_window_put(state, ends, previous, current) end
end

local function sliding_window_save(key, state, args)
  if state.ends == 0 then
    redis.call('DEL', key)
    return
  end
  local kept = string.format('%.0f:%.0f:%.0f', state.ends, state.previous, state.current)
  local tail = state.current > 0 and args.width or 0
  redis.call('SET', key, kept, 'PX', ttl(state.ends + tail))
end
-- Only batches need the rest.

local function sliding_window_give(state, args)
  local ends, previous, current = sliding_window_seen(state, args)
  if previous + current == 0 then return end
  local newest = math.min(args.units, current)
  previous = math.max(previous - (args.units - newest), 0)
  sliding_window_put(state, ends, previous, current - newest)
end

-- Returns units of a take that is gone at `owed_until`, the end of the window after its own.
local function sliding_window_owed(state, args)
  local ends, previous, current = sliding_window_seen(state, args)
  if current > 0 and ends + args.width == args.owed_until then
    sliding_window_put(state, ends, previous, math.max(current - args.units, 0))
  end
end

-- When a window that was just charged is gone.
local function sliding_window_idle(state, args)
  return state.ends + args.width
end

-- Undoes a take if its window is not over; later windows keep their units.
local function sliding_window_undo(state, args)
  local ends, previous, current = sliding_window_seen(state, args)
  if current > 0 and ends == args.taken_at + args.width - args.taken_at % args.width then
    sliding_window_put(state, ends, previous, math.max(current - args.units, 0))
  end
end

local function sliding_window_force(state, args)
  local ends, previous, current, estimate, stale = sliding_window_seen(state, args)
  local booked = math.min(args.units, math.max(args.limit - estimate, 0))
  if booked > 0 or stale then sliding_window_put(state, ends, previous, current + booked) end
end

local function sliding_window_reset(state)
  sliding_window_put(state, 0, 0, 0)
end

local sliding_window = {
  args = sliding_window_args, open = sliding_window_open, answer = sliding_window_answer,
  try = sliding_window_try, deny = sliding_window_deny, give = sliding_window_give,
  force = sliding_window_force, reset = sliding_window_reset, undo = sliding_window_undo, save = sliding_window_save,
  owed = sliding_window_owed, idle = sliding_window_idle,
}
