-- What Neovim's own client sees of a language server: one scenario, named by $SCENARIO.
-- It uses the module of docs/language-server.md; what it saw is printed as one line of JSON.

local PATIENCE = 40000 -- milliseconds: far more than anything here takes

local prose = dofile(vim.env.HOW_TO)
local ended, logged
local progress = {}

prose.config.on_exit = function(code, signal) ended = { code = code, signal = signal } end
prose.config.handlers = {
  ["window/logMessage"] = function(_, params) logged = params.message end,
  ["$/progress"] = function(...)
    table.insert(progress, vim.deepcopy((select(2, ...)))) -- the handler below keeps, and changes, its own
    return vim.lsp.handlers["$/progress"](...)
  end,
}
if vim.env.SERVER then
  prose.config.cmd = { "python3", vim.env.SERVER }
end

local function wait_until(done, what)
  assert(vim.wait(PATIENCE, done, 10), "waited in vain for " .. what)
end

local function client() return vim.lsp.get_client_by_id(prose.client) end

local function open(lines)
  vim.api.nvim_buf_set_lines(0, 0, -1, false, lines)
  vim.api.nvim_buf_set_name(0, vim.env.NOTES)
  vim.cmd("setfiletype text")
  wait_until(function()
    return prose.client and client() and vim.lsp.buf_is_attached(0, prose.client)
      and client().initialized
  end, "the server")
end

local function ask(method, params)
  local answers = assert(vim.lsp.buf_request_sync(0, method, params, PATIENCE))
  return answers[prose.client]
end

local function at(line, byte)
  vim.api.nvim_win_set_cursor(0, { line + 1, byte })
  return vim.lsp.util.make_position_params(0, client().offset_encoding)
end

local function text() return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), "\n") end

local function problems()
  return vim.tbl_map(function(it) return { it.message, it.lnum, it.col } end, vim.diagnostic.get(0))
end

local function stop()
  client().stop()
  wait_until(function() return ended ~= nil end, "the end")
  return ended
end

local scenarios = {}

function scenarios.prose()
  open({ "one two three", "two" })
  local saw = { capabilities = client().server_capabilities }
  saw.hover = ask("textDocument/hover", at(0, 5)).result
  saw.completion = ask("textDocument/completion", at(0, 5)).result
  vim.api.nvim_buf_set_text(0, 0, 0, 0, 0, { "😀 the the " })
  vim.api.nvim_buf_set_text(0, 1, 3, 1, 3, { " 😀", "and and" })
  wait_until(function() return #problems() == 2 end, "the diagnostics")
  saw.problems = problems()
  saw.after = ask("textDocument/hover", at(0, 17)).result
  at(0, 17)
  vim.lsp.buf.rename("deux")
  wait_until(function() return text():find("deux") ~= nil end, "the new name")
  saw.renamed = text()
  vim.api.nvim_buf_set_text(0, 0, 0, 0, 0, { "end  ", "" })
  if vim.lsp.buf.format then
    vim.lsp.buf.format({ timeout_ms = PATIENCE })
  else
    vim.lsp.buf.formatting_sync(nil, PATIENCE)
  end
  saw.formatted = text()
  saw.ended = stop()
  return saw
end

function scenarios.cancel()
  open({ "one" })
  local _, id = client().request("prose/wait", {}, function() end)
  wait_until(function() return logged ~= nil end, "the begin")
  client().cancel_request(id)
  local saw = { hover = ask("textDocument/hover", at(0, 1)).result }
  saw.ended = stop()
  return saw
end

function scenarios.progress()
  open({ "one two one" })
  local saw = { shows = vim.lsp.protocol.make_client_capabilities().window.workDoneProgress }
  saw.indexed = ask("prose/index", { workDoneToken = "mine" }).result
  local params = at(0, 1)
  saw.list = ask("textDocument/declaration", params).result
  params.partialResultToken = "parts"
  saw.parts = ask("textDocument/declaration", params).result
  wait_until(function() return #progress == 7 end, "all progress")
  saw.progress = progress
  saw.ended = stop()
  return saw
end

function scenarios.killed()
  open({ "one" })
  ask("textDocument/hover", at(0, 1))
  vim.loop.kill(tonumber(vim.fn.readfile(vim.env.PID)[1]), "sigkill")
  wait_until(function() return ended ~= nil end, "the end")
  local first = ended
  ended, prose.client = nil, nil
  prose.attach(0)
  wait_until(function() return client() and client().initialized end, "the second server")
  return { first = first, hover = ask("textDocument/hover", at(0, 1)).result, ended = stop() }
end

local fine, saw = xpcall(scenarios[vim.env.SCENARIO], debug.traceback)
if fine then
  io.stdout:write("\nSAW " .. vim.json.encode(saw) .. "\n")
  vim.cmd("qall!")
else
  io.stderr:write(tostring(saw) .. "\n")
  vim.cmd("cquit 1")
end
