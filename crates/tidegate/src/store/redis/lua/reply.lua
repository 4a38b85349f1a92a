local reply, reply_length = { now }, 1
local function append(number)
  reply_length = reply_length + 1
  reply[reply_length] = number
end
