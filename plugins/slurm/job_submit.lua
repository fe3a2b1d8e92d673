-- job_submit.lua: the options --workflow-... of the SPANK plug-in (docs/internals/site.md, "The fork's flags"), jobs that need a memory mode, and
-- reservations of tarn's, into which users put no jobs. Any other job is none of its business. `tarn slurm install` fills in what differs between
-- sites.

-- MiB of a node's memory in 1LM, and the feature of the mode in which it has more, where there is one.
local dram, larger = nil, nil

-- The options that the plug-in reports: {START="1", PRIOR="17", ...}, or nothing.
local function read_options(job)
    local options
    for i = 0, (job.spank_job_env_size or 0) - 1 do
        local name, value = string.match(job.spank_job_env[i] or "", "^TARN_WORKFLOW_([A-Z_]+)=(.*)$")
        if name then
            options = options or {}
            options[name] = value
        end
    end
    return options
end

-- Why the options make no sense together.
local function mistake(job, options)
    if not job.script or job.script == "" then
        return "--workflow-... are options of jobs that have a script (sbatch): a job of salloc or srun cannot be held until others are there"
    elseif options.START and options.PRIOR then
        return "--workflow-start begins a workflow, --workflow-prior-dependency continues one: give one of them"
    elseif not options.START and not options.PRIOR then
        return "--workflow-end and --workflow-same-nodes need --workflow-prior-dependency=JOBID, which names the workflow of the job"
    elseif options.PRIOR and not options.PRIOR:match("^%d+_?%d*$") then
        return "--workflow-prior-dependency is the number of a job"
    end
end

local function joined(old, separator, new)
    return (old and old ~= "") and (old .. separator .. new) or new
end

local function chain(job, options)
    local words = options.START and { "start" } or { "prior=" .. options.PRIOR:match("^%d+") }
    if options.END then
        words[#words + 1] = "end"
    end
    if options.SAME_NODES then
        words[#words + 1] = "same-nodes"
    end
    local text = table.concat(words, " ")
    -- It makes the script one of tarn's, for burst_buffer.lua, whatever else it says.
    local first, rest = job.script:match("^([^\n]*\n)(.*)$")
    job.script = (first or job.script .. "\n") .. "#TARN-WORKFLOW " .. text .. "\n" .. (rest or "")
    -- A user who follows the chain finds it here.
    job.admin_comment = joined(job.admin_comment, " ", "[tarn " .. text .. "]")
    if options.PRIOR then
        job.dependency = joined(job.dependency, ",", "afterok:" .. options.PRIOR .. ",afterburstbuffer:" .. options.PRIOR)
    elseif not options.END then
        -- Held until the end is named: then tarn's controller releases it.
        job.priority = 0
    end
end

-- A job that asks for more memory of a node than it has in 1LM is for nodes in the other mode, if it says nothing of modes itself.
local function memory(job)
    local wanted = tonumber(job.min_mem_per_node)
    if not dram or not wanted or wanted <= dram then
        return
    end
    local features = job.features or ""
    if features == "" then
        job.features = larger
    elseif features:match("^[%w_&]+$") and not ("&" .. features .. "&"):find("&mode_") then
        job.features = features .. "&" .. larger
    end
end

-- The user that slurmctld runs as.
local function read_own_user()
    local status = io.open("/proc/self/status")
    local text = status and status:read("*a") or ""
    if status then
        status:close()
    end
    return tonumber(text:match("\nUid:%s*(%d+)")) or 0
end

local own_user = read_own_user()

-- A reservation of tarn's among those that a job asks for, if its user may not put it there. A job in one goes before all others.
local function taken_reservation(job, user)
    if user == 0 or user == own_user then
        return nil
    end
    for name in (job.reservation or ""):gmatch("[^,%s]+") do
        if name:match("^tarn_%d") then
            return name
        end
    end
end

local function refuse_reservation(name)
    slurm.log_user("tarn: reservation %s keeps nodes for a workflow: tarn puts the workflow's jobs into it by itself, and nobody else does. Leave the reservation out (--reservation, SBATCH_RESERVATION)", name)
    return slurm.ERROR
end

function slurm_job_submit(job, _, user)
    local reservation = taken_reservation(job, user)
    if reservation then
        return refuse_reservation(reservation)
    end
    memory(job)
    local options = read_options(job)
    if not options then
        return slurm.SUCCESS
    end
    local why = mistake(job, options)
    if why then
        slurm.log_user("tarn: %s", why)
        return slurm.ERROR
    end
    chain(job, options)
    return slurm.SUCCESS
end

function slurm_job_modify(job, _, _, user)
    local reservation = taken_reservation(job, user)
    if reservation then
        return refuse_reservation(reservation)
    end
    return slurm.SUCCESS
end

slurm.log_info("tarn: job_submit.lua is loaded")
return slurm.SUCCESS
