-- job_submit.lua: where a job with #TARN lines would best run, and after which jobs. Glue: `tarn slurm advise` knows (docs/site.md).
-- A job that gets no advice is submitted as it is; so is every job without #TARN lines, at the cost of a search in its script.
-- $TARN of slurmctld's environment is the program [tarn].

local tarn = os.getenv("TARN") or "tarn"

local function quoted(word)
    return "'" .. tostring(word):gsub("'", "'\\''") .. "'"
end

-- Adds what must have ended to what the user said.
local function after(dependency, jobs)
    local all = {}
    if dependency and dependency ~= "" then
        all[1] = dependency
    end
    for job in jobs:gmatch("%d+") do
        all[#all + 1] = "afterok:" .. job
        all[#all + 1] = "afterburstbuffer:" .. job
    end
    return table.concat(all, ",")
end

local function advise(job, uid)
    if not job.script or not job.script:find("\n#TARN%s") then
        return
    end
    local path = os.tmpname()
    local file = io.open(path, "w")
    if not file then
        return
    end
    file:write(job.script)
    file:close()
    local command = string.format("%s slurm advise --user %d --group %d --folder %s --script %s 2>/dev/null", quoted(tarn),
        uid, job.group_id or uid, quoted(job.work_dir or "/"), quoted(path))
    local pipe = io.popen(command, "r")
    local said = pipe and pipe:read("*a") or ""
    if pipe then
        pipe:close()
    end
    os.remove(path)
    local nodes, jobs = said:match("prefer=(%S*)"), said:match("after=(%S*)")
    if jobs and jobs ~= "" then
        job.dependency = after(job.dependency, jobs)
    end
    -- A node's own name is a feature of it where the site has said so (docs/site.md): then it can be preferred without being required.
    if nodes and nodes ~= "" and (not job.prefer or job.prefer == "") and not job.req_nodes then
        job.prefer = nodes
    end
end

function slurm_job_submit(job, _, uid)
    local well, why = pcall(advise, job, uid)
    if not well then
        slurm.log_info("tarn: no advice: %s", tostring(why))
    end
    return slurm.SUCCESS
end

function slurm_job_modify()
    return slurm.SUCCESS
end

slurm.log_info("tarn: job_submit.lua is loaded")
return slurm.SUCCESS
