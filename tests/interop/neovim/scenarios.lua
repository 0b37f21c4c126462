-- What Neovim sees of the daemon: one scenario, named by $SCENARIO, in a headless Neovim.
-- It uses the module of docs/neovim.md; what it saw is printed as one line of JSON.

local PATIENCE = 40000 -- milliseconds: far more than anything here takes

local notified, problems = {}, {}
local start = vim.lsp.rpc.start

-- Listen in on what the how-to's dispatchers are told.
vim.lsp.rpc.start = function(command, arguments, dispatchers)
  local notification, on_error = dispatchers.notification, dispatchers.on_error
  dispatchers.notification = function(method, params)
    table.insert(notified, { method, params })
    notification(method, params)
  end
  dispatchers.on_error = function(code, problem)
    table.insert(problems, { code, problem })
    on_error(code, problem)
  end
  return start(command, arguments, dispatchers)
end

local tools = dofile(vim.env.HOW_TO)
local messages = {}
vim.notify = function(message) table.insert(messages, message) end

local function wait_until(done, what)
  assert(vim.wait(PATIENCE, done, 10), "waited in vain for " .. what)
end

local function ask(method, params)
  local answer
  tools.connect().request(method, params, function(problem, result)
    answer = { problem = problem and vim.deepcopy(problem), result = result }
  end)
  wait_until(function() return answer ~= nil end, method)
  return answer
end

local function quit()
  tools.quit()
  wait_until(function() return tools.ended ~= nil end, "the end")
  return tools.ended
end

local function said(beginning)
  for _, message in ipairs(messages) do
    if vim.startswith(message, beginning) then
      return true
    end
  end
  return false
end

local scenarios = {}

function scenarios.requests()
  return {
    named = ask("text.count", { text = "one two\nthree" }).result,
    positional = ask("text.sort", { { "b", "a", "C" } }).result,
    beyond_ascii = ask("text.sort", { lines = { "ü", "😀", "naïve" }, reverse = true }).result,
    empty_table = ask("text.opened", {}).result,
    empty_object = ask("text.opened", vim.empty_dict()).result,
    no_params = ask("version", nil).result,
    handshake = ask("initialize", { processId = 1, capabilities = vim.empty_dict() }).result,
    ended = quit(),
  }
end

function scenarios.errors()
  return {
    own = ask("text.check", { name = "notes" }).problem,
    params = ask("text.count", {}).problem,
    method = ask("text.nonsense", { a = 1 }).problem,
    after = ask("text.count", { text = "still here" }).result,
    ended = quit(),
  }
end

function scenarios.notifications()
  local client = tools.connect()
  client.notify("text.open", { name = "notes", text = "good\nbad  " })
  client.notify("text.nonsense", {})
  client.notify("text.open", { 5 })
  client.notify("initialized", vim.empty_dict())
  local opened = ask("text.opened", nil).result
  wait_until(function() return #notified > 0 end, "the notification")
  return { opened = opened, notified = notified, ended = quit() }
end

function scenarios.pipelined()
  local order = {}
  for number = 1, 100 do
    tools.connect().request("text.count", { text = ("x"):rep(number) }, function(problem, count)
      table.insert(order, problem and -1 or count.characters)
    end)
  end
  wait_until(function() return #order == 100 end, "a hundred answers")
  return { order = order, ended = quit() }
end

function scenarios.asked()
  local answers = { name = "Ada", other = "Grace" }
  vim.fn.input = function(prompt) return answers[vim.trim(prompt):sub(1, -2)] end
  local filled = ask("text.fill", { template = "Dear {name}, dear {other}, dear {name}" }).result
  vim.fn.input = function() error("broken") end
  local broken = ask("text.fill", { template = "{name}" }).problem
  return { filled = filled, broken = broken, ended = quit() }
end

function scenarios.cancel()
  local cancel_running = tools.search("needle", vim.env.HAYSTACK, 0.2)
  wait_until(function() return #notified > 0 end, "progress")
  local called, queued = false, nil
  _, queued = tools.connect().request("text.count", { text = "a" }, function() called = true end)
  local after
  tools.connect().request("text.count", { text = "a b" }, function(_, result) after = result end)
  tools.connect().notify("$/cancelRequest", { id = queued })
  tools.connect().notify("$/cancelRequest", { id = 4711 })
  cancel_running()
  wait_until(function() return after ~= nil end, "the request behind the cancelled ones")
  return { after = after, called = called, messages = messages, ended = quit() }
end

function scenarios.forced()
  local named = ask("text.count", { text = "one" }).result
  tools.connect().handle:kill(15)
  wait_until(function() return tools.ended ~= nil end, "the end")
  return { named = named, ended = tools.ended }
end

function scenarios.cannot_start()
  tools.command = { "duet-rpc", "serve", "nothing.py" }
  tools.connect()
  wait_until(function() return tools.ended ~= nil end, "the end")
  return { ended = tools.ended }
end

local function log_has(part)
  local file = io.open(vim.lsp.get_log_path())
  local text = file and file:read("*a") or ""
  if file then
    file:close()
  end
  return text:find(part, 1, true) ~= nil
end

function scenarios.leave()
  return { named = ask("text.count", { text = "one" }).result }
end

function scenarios.how_to()
  vim.api.nvim_buf_set_name(0, "notes")
  vim.api.nvim_buf_set_lines(0, 0, -1, false, { "one two ", "three" })
  tools.count()
  wait_until(function() return said("2 lines, 3 words, 14 characters") end, "the count")
  tools.open()
  wait_until(function() return #vim.diagnostic.get(0) > 0 end, "the diagnostics")
  local found = vim.diagnostic.get(0)[1]
  vim.fn.input = function() return "Ada" end
  vim.api.nvim_buf_set_lines(0, 0, -1, false, { "" })
  tools.insert("Dear {name}")
  wait_until(function() return vim.api.nvim_get_current_line() ~= "" end, "the template")
  tools.search("needle", vim.env.HAYSTACK)
  wait_until(function() return said("Found") end, "the search")
  tools.search("(", vim.env.HAYSTACK)
  wait_until(function() return said("Not a regular") end, "the refusal")
  wait_until(function() return log_has("info started") end, "the log")
  return {
    diagnostic = { found.lnum, found.message },
    line = vim.api.nvim_get_current_line(),
    messages = messages,
    ended = quit(),
  }
end

local fine, saw = xpcall(scenarios[vim.env.SCENARIO], debug.traceback)
if fine then
  saw.problems = #problems
  io.stdout:write("\nSAW " .. vim.json.encode(saw) .. "\n")
  vim.cmd("qall!")
else
  io.stderr:write(tostring(saw) .. "\n" .. vim.inspect({ messages, problems, notified }) .. "\n")
  vim.cmd("cquit 1")
end
