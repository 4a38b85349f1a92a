-- Values that no script writes: another type of key, or texts that are no whole numbers. Such a key
-- counts as absent, and the next write replaces it. The reply ends with the number of such keys, if
-- any.
local corrupt, last_instant, most_units = 0, 18014398509481984, 4503599627370496

local function spoil(state)
  corrupt, state.corrupt = corrupt + 1, true
  return state
end

-- A whole number from 0 to `most`, or nil.
local function whole(text, most)
  local number = tonumber(text)
  if number and number >= 0 and number <= most and number % 1 == 0 then return number end
end

-- Whether `found`, the result of `redis.pcall(...)`, is the error for a key of another type. Any
-- other error ends the call.
local function is_wrong_type(found, ...)
  if type(found) ~= 'table' or not found.err then return false end
  if not string.find(found.err, 'WRONGTYPE', 1, true) then redis.call(...) end
  return true
end

-- The text of a key; false if there is none, true if the key has another type.
local function get(key)
  local kept = redis.pcall('GET', key)
  return type(kept) == 'table' and is_wrong_type(kept, 'GET', key) or kept
end

