-- The time to live in milliseconds of a state that must last until `instant`.
local function ttl(instant)
  local left = (instant > now and instant - now or 0) + 999
  return (left - left % 1000) / 1000 + slack
end

