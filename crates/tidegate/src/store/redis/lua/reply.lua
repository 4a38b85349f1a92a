local reply, said = { now }, 1
local function say(number)
  said = said + 1
  reply[said] = number
end
