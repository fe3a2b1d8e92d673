-- burst_buffer.lua: the functions that Slurm calls at each stage of a job with #TARN lines. Glue: all that there is to decide is
-- in `tarn slurm`, which asks tarn's controller (docs/internals/site.md). $TARN of slurmctld's environment is the program [tarn].
-- `tarn slurm install` fills in what differs between sites. In burst_buffer.conf: Directive=TARN

local tarn = os.getenv("TARN") or "tarn"
-- The folder of slurm.conf, where it is said that tarn is switched off.
local conf = "/etc/slurm"

local function quoted(word)
    return "'" .. tostring(word):gsub("'", "'\\''") .. "'"
end

-- Runs `tarn slurm WORDS...`. Returns Slurm's result, and the text of the reply.
local function ask(...)
    local words = { quoted(tarn), "slurm" }
    for _, word in ipairs({ ... }) do
        words[#words + 1] = quoted(word)
    end
    -- Lua 5.1 does not tell how a command ended.
    local pipe = io.popen(table.concat(words, " ") .. " 2>&1; echo \"status $?\"", "r")
    if not pipe then
        return slurm.ERROR, "tarn: " .. tarn .. " cannot be started"
    end
    local output = pipe:read("*a") or ""
    pipe:close()
    local text, status = output:match("^(.-)%s*status (%d+)%s*$")
    if status == "0" then
        return slurm.SUCCESS, text
    end
    text = text and text ~= "" and text or ("`tarn slurm` failed: " .. output)
    slurm.log_info("tarn: %s", text)
    return slurm.ERROR, text
end

-- Tells tarn's controller that a job is being submitted: it reads Slurm's queue when the job is there. The file is the controller's
-- (docs/internals/site.md, "The order of jobs"); where it is missing, the controller learns of the job at its setup.
local function notify()
    local file = io.open("/run/tarn/submitted", "r+")
    if file then
        file:write("1")
        file:close()
    end
end

-- Inside slurmctld, which does nothing else meanwhile: no network, no controller.
function slurm_bb_job_process(script)
    local result, text = ask("check", script, "--conf", conf)
    if result == slurm.SUCCESS then
        notify()
    end
    return result, result == slurm.SUCCESS and "" or text
end

-- Room is counted for each node by tarn, not for the whole cluster here.
function slurm_bb_pools()
    return slurm.SUCCESS
end

function slurm_bb_setup(job, uid, gid, _, _, script)
    return ask("setup", job, "--user", uid, "--group", gid, "--script", script)
end

function slurm_bb_data_in(job)
    return ask("data-in", job)
end

function slurm_bb_test_data_in()
    return slurm.SUCCESS, ""
end

function slurm_bb_real_size()
    return slurm.SUCCESS, "0"
end

function slurm_bb_paths()
    return slurm.SUCCESS, ""
end

function slurm_bb_pre_run(job)
    return ask("pre-run", job)
end

function slurm_bb_post_run(job)
    return ask("post-run", job)
end

function slurm_bb_data_out(job)
    return ask("data-out", job)
end

function slurm_bb_test_data_out()
    return slurm.SUCCESS, ""
end

function slurm_bb_job_teardown(job, _, hurry)
    if hurry == true or hurry == "true" then
        return ask("teardown", job, "--hurry")
    end
    return ask("teardown", job)
end

function slurm_bb_get_status()
    return ask("status")
end

return slurm.SUCCESS
