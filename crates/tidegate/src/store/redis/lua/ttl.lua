-- Milliseconds that a state must be kept to be kept until `instant`.
local function ttl(instant)
  local left = (instant > now and instant - now or 0) + 999
  return (left - left % 1000) / 1000 + slack
end

