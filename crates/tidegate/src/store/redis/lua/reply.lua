-- Milliseconds that a state must be kept to be kept until `instant`.
local function ttl(instant)
  return math.ceil(math.max(instant - now, 0) / 1000) + slack
end

local reply, said = { now }, 1
local function say(number)
  said = said + 1
  reply[said] = number
end
