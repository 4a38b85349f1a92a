-- For tests: the caller's clock, and keys that outlive simulated time standing still.
local now = tonumber(ARGV[#ARGV])
local slack = 3600000
