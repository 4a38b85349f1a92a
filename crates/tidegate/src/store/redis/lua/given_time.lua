-- For tests: the caller's clock, and keys that do not expire while simulated time stands still.
local now = tonumber(ARGV[#ARGV])
local slack = 3600000
