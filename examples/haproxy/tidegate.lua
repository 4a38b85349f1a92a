-- Asks Tidegate whether a request may go on, and leaves what it says in variables of the transaction:
-- tidegate (the status), ratelimit, ratelimit_policy, retry_after.

-- What Tidegate believes; clients may not say it.
local claims = {
    "x-forwarded-method", "x-forwarded-uri", "x-forwarded-host", "x-forwarded-for",
    "x-original-method", "x-original-uri", "x-original-url", "x-original-host",
}

core.register_action("tidegate", { "http-req" }, function(txn, url)
    local headers = txn.http:req_get_headers()
    for _, name in ipairs(claims) do headers[name] = nil end
    -- What belongs to the client's connection and body, not to this question.
    for _, name in ipairs({ "connection", "content-length", "transfer-encoding", "expect" }) do
        headers[name] = nil
    end
    headers["x-forwarded-method"] = { [0] = txn.sf:method() }
    headers["x-forwarded-uri"] = { [0] = txn.sf:pathq() }
    headers["x-forwarded-host"] = { [0] = txn.sf:req_fhdr("host") }
    headers["x-forwarded-for"] = { [0] = txn.sf:src() }

    local answer = core.httpclient():get({ url = url, headers = headers, timeout = 1000 })
    if not answer then return end
    txn:set_var("txn.tidegate", answer.status)
    local named = { ["ratelimit"] = "ratelimit", ["ratelimit-policy"] = "ratelimit_policy",
        ["retry-after"] = "retry_after" }
    for header, variable in pairs(named) do
        local values = answer.headers and answer.headers[header]
        if values then txn:set_var("txn." .. variable, values[0]) end
    end
end, 1)
