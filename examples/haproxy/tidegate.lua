-- Calls Tidegate for a request, and sets variables of the transaction: tidegate (the status of
-- the answer, or 0 if there is none), ratelimit, ratelimit_policy, retry_after.
--
-- If this script fails, the variable tidegate is not set, and haproxy.cfg refuses the request.

-- Client headers that the policy reads. No other header of the client is forwarded.
local forwarded = { "x-api-key", "authorization", "cookie" }

-- The call has to fit into one buffer of HAProxy (tune.bufsize, 16 kB by default).
local max_bytes = 8192
local max_lines = 8

local answered = { ["ratelimit"] = "ratelimit", ["ratelimit-policy"] = "ratelimit_policy",
    ["retry-after"] = "retry_after" }

core.register_action("tidegate", { "http-req" }, function(txn, url)
    local received = txn.http:req_get_headers()
    local headers = {
        ["x-forwarded-method"] = { [0] = txn.sf:method() },
        ["x-forwarded-uri"] = { [0] = txn.sf:pathq() },
        ["x-forwarded-host"] = { [0] = txn.sf:req_fhdr("host") },
        ["x-forwarded-for"] = { [0] = txn.sf:src() },
    }
    for _, name in ipairs(forwarded) do headers[name] = received[name] end

    local bytes, lines = 0, 0
    for name, values in pairs(headers) do
        for _, value in pairs(values) do
            bytes, lines = bytes + #name + #value + 4, lines + 1
        end
    end
    if bytes > max_bytes or lines > max_lines then
        txn:set_var("txn.tidegate", 431)
        return
    end

    local answer = core.httpclient():get({ url = url, headers = headers, timeout = 1000 })
    local kind = answer and answer.headers and answer.headers["content-type"]
    -- If Tidegate does not answer, HAProxy itself answers with a page: 502, 503 or 504.
    if kind and kind[0]:find("text/html", 1, true) then answer = nil end
    txn:set_var("txn.tidegate", answer and answer.status or 0)
    for header, variable in pairs(answered) do
        local values = answer and answer.headers and answer.headers[header]
        if values then txn:set_var("txn." .. variable, values[0]) end
    end
end, 1)
